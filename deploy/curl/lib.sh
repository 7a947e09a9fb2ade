# What the scripts beside this file share: how the daemon is reached, how an answer is shown, and with which code they end.
#
# Environment, the same as for `scheduler-daemon schedules ...`:
#   SCHEDULER_URL          where the daemon is; default http://127.0.0.1:8766, a /rpc at its end does not matter
#   SCHEDULER_TOKEN_FILE   file with the bearer token, if the daemon demands one
#   SCHEDULER_SOCKET_PATH  its unix socket, if it is to be reached over that
#   SCHEDULER_CA_FILE      CA certificates (PEM), for https
#
# The answer goes to stdout, laid out by jq if there is one.  Exit codes, the same as the daemon's own commands:
#   0 done, 1 refused (the message says what to change), 2 wrong arguments, 3 the outcome is not known: look first,
#   69 nothing was done and the same may succeed later
#
# Neither the token nor the params are ever arguments of a program: everybody on a machine can read those.
# shellcheck shell=sh

base=${SCHEDULER_URL:-http://127.0.0.1:8766}
base=${base%/}
base=${base%/rpc}

# The comment at the head of the script is its help.
usage() {
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
}

# arguments MIN MAX "$@": end with the help unless that many were given
arguments() {
    least=$1 most=$2
    shift 2
    case ${1-} in -h | --help) usage && exit 0 ;; esac
    [ $# -ge "$least" ] && [ $# -le "$most" ] && return
    usage >&2
    exit 2
}

die() {
    printf '%s: %s\n' "${0##*/}" "$2" >&2
    exit "$1"
}

# One argument as a JSON string.  In an assignment of its own, or a refusal does not end the script.
text() {
    case $1 in *[[:cntrl:]]*) die 2 "an argument holds a control character" ;; esac
    printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g; s/^/"/; s/$/"/'
}

# A JSON object as members to append to an object that is not empty: {"a": 1} becomes ,"a": 1 -- in an assignment too.
members() {
    inner=$(printf '%s' "$1" | sed 's/^[[:space:]]*{//; s/}[[:space:]]*$//')
    case $inner in
    "$1") die 2 "not a JSON object: $1" ;;
    *[![:space:]]*) printf ',%s' "$inner" ;;
    esac
}

# request PATH [OPTIONS]: one HTTP request, its body from stdin; the answer and, on a last line, the status
request() {
    path=$1
    shift
    [ -z "${SCHEDULER_SOCKET_PATH-}" ] || set -- --unix-socket "$SCHEDULER_SOCKET_PATH" "$@"
    [ -z "${SCHEDULER_CA_FILE-}" ] || set -- --cacert "$SCHEDULER_CA_FILE" "$@"
    authorization=
    if [ -n "${SCHEDULER_TOKEN_FILE-}" ]; then
        token=$(cat "$SCHEDULER_TOKEN_FILE") || exit 2
        header=$(text "Authorization: Bearer $token") || exit 2
        authorization="header = $header"
    fi
    curl -q --silent --show-error --noproxy '*' --proto =http,https --connect-timeout 5 \
        --write-out '\n%{http_code}' --config /dev/fd/3 "$@" "$base$path" 3<<CONFIG
$authorization
CONFIG
}

# What an ending without an answer means: only a connection that never came about proves that nothing was done.
unanswered() {
    case $1 in
    5 | 6 | 7 | 35 | 60) exit 69 ;;
    2 | 3 | 26 | 37) exit 2 ;;
    *) die 3 "the outcome is not known: look before you repeat it" ;;
    esac
}

# Split an answer of `request` into $answer and $status.
split() {
    status=${1##*
}
    answer=${1%
*}
}

show() {
    if command -v jq >/dev/null 2>&1; then
        printf '%s\n' "$1" | jq .
    else
        printf '%s\n' "$1"
    fi
}

# call METHOD PARAMS: one JSON-RPC call; shows its result, or its error on stderr
call() {
    got=$(printf '{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}' "$1" "$2" |
        request /rpc --header 'Content-Type: application/json' --data-binary @-) || unanswered $?
    split "$got"
    case $status:$answer in
    200:'{"jsonrpc":"2.0","result":'*)
        answer=${answer#*'"result":'}
        show "${answer%,\"id\":1\}}"
        ;;
    200:'{"jsonrpc":"2.0","error":{"code":-32603'*)
        show "$answer" >&2
        exit 3
        ;;
    200:'{"jsonrpc":"2.0","error":'*)
        show "$answer" >&2
        case $answer in *'"retryable":true'*) exit 69 ;; *) exit 1 ;; esac
        ;;
    429:*) die 69 "HTTP $status $answer" ;;
    3??:* | 401:* | 403:* | 404:* | 405:* | 413:* | 415:* | 421:*) die 1 "HTTP $status $answer" ;;
    *) die 3 "HTTP $status $answer" ;;
    esac
}

# read_page PATH: what the daemon shows without JSON-RPC; 503 is an answer too
read_page() {
    got=$(request "$1" </dev/null) || { [ $? -ne 2 ] || exit 2; exit 69; }
    split "$got"
}
