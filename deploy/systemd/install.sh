#!/bin/sh
# install.sh [--files-only]
#
# Put the scheduler daemon onto this machine, for systemd: a virtual environment of its own, the units, the operators' scripts
# and the runbook.  Run as root in the project's folder; `make install-systemd` does.  Nothing is enabled or started, and no
# configuration that exists is touched, so it serves for updates as well.
#
#   PREFIX   where the daemon goes; default /opt/scheduler-daemon
#   DESTDIR  prepended to every path, to build a package; only with --files-only, as a virtual environment cannot be moved
#   PYTHON   the interpreter; default python3, 3.11 or newer
#
# With --files-only everything but the virtual environment.

set -eu
prefix=${PREFIX:-/opt/scheduler-daemon}
root=${DESTDIR:-}
python=${PYTHON:-python3}
cd "$(dirname -- "$0")/../.."

case ${1-} in
--files-only) ;;
'')
    [ -z "$root" ] || { echo "install.sh: DESTDIR needs --files-only" >&2 && exit 2; }
    # A wheel that is built over an older build folder would carry modules that are gone.
    rm -rf build
    "$python" -m venv "$root$prefix"
    "$root$prefix/bin/python" -m pip install --quiet --disable-pip-version-check -c requirements.lock .
    rm -rf build
    ;;
*)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac

install -d "$root$prefix/share/doc/scheduler-daemon" "$root$prefix/share/scheduler-daemon/curl" \
    "$root$prefix/share/scheduler-daemon/systemd" "$root/etc/systemd/system" "$root/etc/scheduler-daemon"
install -m 644 deploy/RUNBOOK.md deploy/examples/* deploy/prometheus/alerts.yml "$root$prefix/share/doc/scheduler-daemon"
install -m 755 deploy/curl/* "$root$prefix/share/scheduler-daemon/curl"
chmod 644 "$root$prefix/share/scheduler-daemon/curl/lib.sh"
install -m 644 deploy/systemd/*.conf "$root$prefix/share/scheduler-daemon/systemd"
for unit in scheduler-daemon.service scheduler-daemon.socket; do
    sed "s,/opt/scheduler-daemon,$prefix,g" "deploy/systemd/$unit" >"$root/etc/systemd/system/$unit"
    chmod 644 "$root/etc/systemd/system/$unit"
done
[ -e "$root/etc/scheduler-daemon/scheduler.toml" ] ||
    install -m 644 deploy/examples/scheduler.toml "$root/etc/scheduler-daemon/scheduler.toml"

cat <<NEXT
Installed in $prefix.  Next:
  edit /etc/scheduler-daemon/scheduler.toml
  put tokens, if any, into /etc/credstore/scheduler-daemon.token and /etc/credstore/scheduler-daemon.server-token (mode 600)
  $prefix/bin/scheduler-daemon check --config /etc/scheduler-daemon/scheduler.toml
  systemctl daemon-reload && systemctl enable --now scheduler-daemon
Drop-ins for a daemon that runs the commands itself, or whose server is elsewhere, lie in
$prefix/share/scheduler-daemon/systemd; copy one into /etc/systemd/system/scheduler-daemon.service.d/.
When something is wrong: $prefix/share/doc/scheduler-daemon/RUNBOOK.md
NEXT
