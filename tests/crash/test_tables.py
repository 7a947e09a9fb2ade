"""Each row of *found at recovery* and of the table of faults, with the tests that hold it: a map, so that no row loses its proof.

The tables themselves are argued in `store/scan.py`, `store/recovery.py`, `store/fs.py` and `store/lock.py`.  Here stands only where to
look when one is doubted, and that what is named is there.
"""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
RECOVERY, FAULTS, LOCK = "unit/test_store_recovery.py", "unit/test_store_faults.py", "unit/test_store_lock.py"
OPEN, PROCESS, SIMULATED = "unit/test_store_open.py", "crash/test_real_process.py", "crash/test_faults.py"
STRACED, DISKS, DAMAGE = "crash/test_straced.py", "crash/test_real_disks.py", "crash/test_damage.py"

FOUND_AT_RECOVERY = {
    "the last segment ends torn": (
        (RECOVERY, "test_a_last_segment_that_ends_without_a_newline_is_torn_and_cut_to_the_last_commit"),
        (RECOVERY, "test_valid_lines_that_no_commit_line_follows_are_torn"),
        (RECOVERY, "test_a_last_segment_that_ends_in_zeros_is_torn"),
        (RECOVERY, "test_a_zeroed_sector_in_the_last_batch_is_torn_although_its_commit_line_is_there"),
        (RECOVERY, "test_what_is_cut_is_kept_in_quarantine_with_the_reason"),
        ("crash/test_enumeration.py", "test_every_legal_disk_after_a_crash_at_any_call_holds_what_was_acknowledged"),
        (DISKS, "test_thirty_power_cuts_lose_nothing_that_was_acknowledged"),
    ),
    "a bad line or commit line in the last batch": (
        (RECOVERY, "test_a_damaged_commit_line_of_the_last_batch_blocks_the_schedules_of_that_batch"),
        (RECOVERY, "test_a_damaged_record_of_the_last_batch_blocks_the_schedule_that_its_commit_line_says_lacks_one"),
        (RECOVERY, "test_a_last_batch_of_which_record_and_commit_line_are_damaged_stops_admission_for_all"),
    ),
    "a bad line that later commits follow": (
        (RECOVERY, "test_a_bad_line_blocks_the_schedule_that_its_commit_line_names_and_that_lacks_its_record"),
        (RECOVERY, "test_a_record_whose_commit_line_is_damaged_too_is_named_by_the_gap_in_its_schedule"),
        (RECOVERY, "test_a_record_that_nothing_names_stops_admission_for_all"),
        (RECOVERY, "test_other_schedules_of_the_damaged_batch_lose_nothing"),
        ("crash/test_flips.py", "test_a_thousand_flips_in_a_store_of_200_schedules_and_20000_rows"),
    ),
    "a missing segment, a gap, an epoch going backwards": (
        (RECOVERY, "test_a_missing_segment_is_refused"),
        (RECOVERY, "test_a_first_segment_that_is_missing_without_a_snapshot_is_refused"),
        (RECOVERY, "test_a_last_segment_that_is_missing_after_a_snapshot_is_refused"),
        (RECOVERY, "test_a_gap_in_the_numbers_without_a_bad_line_is_refused"),
        (RECOVERY, "test_an_epoch_that_goes_backwards_is_refused"),
        (PROCESS, "test_a_store_that_is_refused_ends_the_process_with_78_and_the_reason_and_is_left_as_it_was"),
    ),
    "a bad snapshot line": (
        (RECOVERY, "test_a_bad_line_of_the_newest_snapshot_is_taken_from_the_older_one_and_the_journal"),
        (RECOVERY, "test_a_snapshot_line_that_both_snapshots_lack_stops_admission_for_all"),
        (RECOVERY, "test_without_a_readable_snapshot_and_without_the_first_segment_the_store_is_refused"),
    ),
    "a bad history line": (
        (RECOVERY, "test_a_bad_history_line_shows_a_diagnostic_row_and_blocks_nobody_when_its_run_is_over"),
        (RECOVERY, "test_a_bad_history_line_of_an_unfinished_run_blocks_its_schedule_once"),
    ),
    "an unknown kind, a higher version": (
        (RECOVERY, "test_a_record_of_an_unknown_kind_blocks_the_schedule_it_names"),
        (RECOVERY, "test_a_record_of_an_unknown_kind_and_of_no_schedule_is_refused"),
        (RECOVERY, "test_a_record_of_a_higher_format_version_is_refused"),
        (RECOVERY, "test_a_snapshot_of_a_higher_format_version_is_refused"),
        (OPEN, "test_a_format_that_is_not_ours_is_refused_with_the_file_named"),
    ),
    "larger damage than the table names": (
        (DAMAGE, "test_whatever_becomes_of_a_file_nothing_wrong_is_served_and_nothing_is_hidden"),
    ),
}

FAULTS_AND_WHAT_IS_DONE = {
    "a short write, no room, over quota": (
        (FAULTS, "test_short_writes_are_gone_on_with_until_all_is_written"),
        (FAULTS, "test_without_room_the_batch_is_refused_and_nothing_of_it_is_on_disk"),
        (FAULTS, "test_reads_go_on_while_the_disk_is_full"),
        (SIMULATED, "test_a_disk_that_takes_nothing_for_a_while_is_waited_for"),
        (SIMULATED, "test_any_one_write_may_be_short_and_nobody_notices"),
        (PROCESS, "test_on_a_full_disk_calls_are_refused_reads_go_on_and_room_is_all_it_takes"),
        (STRACED, "test_each_system_call_of_the_process_fails_in_turn_and_nothing_acknowledged_is_lost"),
    ),
    "a failed sync, an I/O error": (
        (FAULTS, "test_after_a_failed_sync_nothing_is_written_any_more"),
        (FAULTS, "test_an_io_error_at_a_write_ends_the_store"),
        (FAULTS, "test_a_checkpoint_that_fails_after_nobody_waits_for_it_any_more_ends_the_store_all_the_same"),
        (PROCESS, "test_a_sync_that_fails_while_a_stop_waits_for_the_last_run_is_no_stop_in_order"),
        (SIMULATED, "test_a_failed_sync_is_never_tried_again"),
        (PROCESS, "test_after_a_failed_sync_the_process_ends_at_once_and_a_restart_serves_what_was_durable"),
    ),
    "a filesystem that became read-only": (
        (FAULTS, "test_a_disk_that_became_read_only_refuses_batches_until_it_takes_writes_again"),
        (STRACED, "test_each_system_call_of_the_process_fails_in_turn_and_nothing_acknowledged_is_lost"),
    ),
    "no descriptors": (
        (FAULTS, "test_out_of_descriptors_pages_are_read_and_batches_written_and_nothing_is_taken_for_damage"),
        (FAULTS, "test_without_inodes_or_descriptors_for_a_new_segment_the_old_one_takes_more"),
    ),
    "the lock deleted or replaced": (
        (LOCK, "test_a_deleted_lock_file_is_a_lost_store_and_lets_nobody_else_in"),
        (LOCK, "test_a_replaced_lock_file_is_a_lost_store"),
        (
            PROCESS,
            "test_a_daemon_whose_lock_file_is_gone_commits_nothing_more_and_keeps_a_second_one_out_while_it_lives",
        ),
        (PROCESS, "test_an_instant_that_comes_after_the_lock_is_gone_is_not_dispatched"),
    ),
    "a network filesystem": (
        (LOCK, "test_a_network_filesystem_is_refused_without_an_explicit_word"),
        (PROCESS, "test_a_store_on_a_network_filesystem_is_refused_with_78_until_that_is_allowed"),
    ),
    "an old copy put back": (
        (OPEN, "test_a_store_of_a_lower_epoch_than_its_lock_file_has_seen_is_not_started_until_that_is_accepted"),
        (OPEN, "test_acceptance_mints_a_new_id_and_an_epoch_above_all_seen"),
        ("integration/test_restore.py", "test_a_restored_copy_admits_nothing_until_accepted_and_starts_nothing_twice"),
        (
            "integration/test_restore.py",
            "test_a_copy_taken_while_hundreds_are_admitted_is_clean_and_starts_nothing_twice",
        ),
    ),
}


def _tests_in(name: str) -> set[str]:
    tree = ast.parse((TESTS / name).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("row", [*FOUND_AT_RECOVERY, *FAULTS_AND_WHAT_IS_DONE])
def test_each_row_of_the_tables_has_tests_that_exist(row: str):
    proofs = {**FOUND_AT_RECOVERY, **FAULTS_AND_WHAT_IS_DONE}[row]
    missing = [f"{name}::{test}" for name, test in proofs if test not in _tests_in(name)]
    assert missing == []
