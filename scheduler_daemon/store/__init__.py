"""Durability: bytes and files, no policy.

The promise is that whatever the daemon said yes to is on disk before the answer leaves, and that what cannot be read later harms
nobody but its owner.  One journal keeps it.  Everything else here is derived from the journal and could be thrown away while the
journal still has it: histories, snapshots and the run index exist so that the journal need not be kept for ever.

    <store_root>/scheduler.lock                    who has the store, the highest epoch and record seen; in no backup
    <store_root>/schedules/FORMAT.json             the format's name and version, the store id; makes the folder a store
                           RESTORED.json           present from a restore until what it means was carried out
                           journal/<first>.jsonl   segments, named by the number of their first record
                           snapshot/<seq>.jsonl    the state as of a record; the newest two
                           occurrences/<hh>/<schedule id>.jsonl    the rows of one schedule
                           runs/<hh>.jsonl         run id or server run id → schedule
                           quarantine/             torn or damaged bytes, with the reason beside them; never deleted here

Every file is lines of `{"c":"<crc32>","r":{"v":1,…}}`, so `jq .r` reads it.  A batch in the journal:

    {"v":1,"seq":7,"epoch":2,"kind":"RunAdmitted","at":…,"schedule_id":"nightly","n":12,"run_id":"run-000031",…}
    {"v":1,"seq":8,"epoch":2,"kind":"DispatchMarked","at":…,"schedule_id":"nightly","n":13,…}
    {"v":1,"kind":"commit","epoch":2,"first":7,"last":8,"at":…,"last_n":{"nightly":13},"run_number":31}

`seq` numbers the records of the store without gaps, `n` those of a schedule.  The commit line is the last thing of a batch that is
written, so a batch without one was never acknowledged; and it names every schedule in the batch, so a record that cannot be read
has an owner.  It also repeats what would be dangerous to lose: the time up to which everything was decided, and the run numbers.

Where to read on, in the order in which a batch meets them:

    store.py       the facade, and which thread does what
    journal.py     one batch: one append, one sync         schema.py, framing.py   what is in it
    checkpoint.py  histories, snapshot, dropping segments  history.py, retention.py, runindex.py, snapshot.py, tail.py
    reading.py     pages and runs                          lines.py
    opening.py     taking the store over                   lock.py, mounts.py, documents.py
    loading.py     which snapshot, which segments          scan.py, recovery.py: the table *found at recovery*
    tools.py       verify, backup, restore                 verify.py, backup.py
    fs.py          every file operation                    errors.py: what can go wrong, by what to do about it
"""
