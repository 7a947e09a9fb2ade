"""The queue of the agenda against a dictionary that is sorted each time it is asked."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_daemon.core.agenda import LazyQueue

KEYS = st.sampled_from([f"k{n}" for n in range(12)])
PRIORITIES = st.integers(0, 40)


def crowd(priorities):
    return [(priority, f"c{n}") for n, priority in enumerate(priorities)]


STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, PRIORITIES),
    st.tuples(st.just("take out"), KEYS),
    st.tuples(st.just("pop"), PRIORITIES),
    st.tuples(st.just("crowd"), st.lists(PRIORITIES, max_size=200)),
    st.tuples(st.just("all"), st.lists(st.tuples(PRIORITIES, KEYS), max_size=12, unique_by=lambda entry: entry[1])),
    st.tuples(st.just("all"), st.lists(PRIORITIES, max_size=200).map(crowd)),
)


@given(st.lists(STEPS, max_size=40))
def test_it_gives_out_what_a_sorted_dictionary_would(steps):
    queue, known = LazyQueue(), {}
    for step in steps:
        match step:
            case ("set", key, priority):
                queue.set(key, priority)
                known[key] = priority
            case ("take out", key):
                queue.set(key, None)
                known.pop(key, None)
            case ("crowd", priorities):
                for priority, key in crowd(priorities):
                    queue.set(key, priority)
                    known[key] = priority
            case ("all", entries):
                queue.set_all(entries)
                known |= {key: priority for priority, key in entries}
            case ("pop", priority):
                due = sorted((of, key) for key, of in known.items() if of <= priority)
                assert queue.pop_until(priority) == [key for _, key in due]
                for _, key in due:
                    del known[key]
        assert queue.top() == min(known.values(), default=None)
        assert {key: queue.get(key) for key in known} == known


@given(st.permutations(range(120)), st.integers(0, 120))
def test_a_crowd_that_came_in_any_order_leaves_in_order(order, until):
    queue = LazyQueue()
    for priority in order:
        queue.set(f"k{priority:03d}", priority)
    assert queue.pop_until(until) == [f"k{n:03d}" for n in range(min(until + 1, 120))]
    assert queue.pop_until(200) == [f"k{n:03d}" for n in range(min(until + 1, 120), 120)]


def test_what_is_set_again_and_again_does_not_pile_up():
    queue = LazyQueue()
    for n in range(10_000):
        queue.set("only", 1_000 - n % 1_000)
        queue.set_all([(n % 1_000, "other")])
    assert len(queue._row) + len(queue._heap) < 100
    assert queue.top() == 1
