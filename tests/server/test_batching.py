"""The thread that owns the models: what is read together, what is refused, and what becomes of the rest."""

import asyncio
import threading
import time

import pytest

from wellread.server.batching import Batcher, BusyError, ClosedError


class Model:
    """Notes the batches that it is given, and works only when it may."""

    def __init__(self, *, held=False):
        self.batches = []
        self.may = threading.Event()
        if not held:
            self.may.set()

    def __call__(self, kind, given):
        assert self.may.wait(20)
        self.batches.append((kind, list(given)))
        if kind == "broken" or "poison" in given:
            raise ValueError("broken")
        return [[ValueError(f"not {one}") if one == "bad" else f"{kind} {one}" for one in given]]


def run(scenario, model, **limits):
    async def main():
        worker = Batcher(model, **{"queue": 100, "together": 100, "together_characters": 10_000, **limits})
        try:
            return await scenario(worker)
        finally:
            model.may.set()
            await asyncio.to_thread(worker.close)

    return asyncio.run(asyncio.wait_for(main(), 60))


async def first_taken(worker, future):
    """Wait until the thread has taken what came first, so that all else waits behind it."""
    while worker.waiting and not future.done():
        await asyncio.sleep(0.001)


def test_who_waits_is_read_together_with_others_of_its_kind():
    model = Model(held=True)

    async def scenario(worker):
        first = worker.submit("a", 0)
        await first_taken(worker, first)
        others = [worker.submit(kind, number) for number, kind in enumerate("aabab", 1)]
        model.may.set()
        return await asyncio.gather(first, *others)

    assert run(scenario, model) == ["a 0", "a 1", "a 2", "b 3", "a 4", "b 5"]
    assert model.batches == [("a", [0]), ("a", [1, 2, 4]), ("b", [3, 5])]


def test_a_batch_is_no_larger_than_allowed():
    model = Model(held=True)

    async def scenario(worker):
        first = worker.submit("a", 0)
        await first_taken(worker, first)
        sizes = [(3, 10), (3, 10), (1, 10), (1, 91)]
        others = [worker.submit("a", n, size=size, characters=letters) for n, (size, letters) in enumerate(sizes, 1)]
        model.may.set()
        await asyncio.gather(*others)

    run(scenario, model, together=5, together_characters=100)
    assert [given for _, given in model.batches] == [[0], [1, 3], [2], [4]]


def test_several_threads_read_at_once():
    lock, state = threading.Lock(), {"active": 0, "most": 0}

    def do(kind, given):
        with lock:
            state["active"] += 1
            state["most"] = max(state["most"], state["active"])
        time.sleep(0.002)
        with lock:
            state["active"] -= 1
        return [given]

    async def main():
        worker = Batcher(do, queue=1000, together=2, together_characters=1000, threads=3)
        seen = await asyncio.wait_for(asyncio.gather(*(worker.submit("a", number) for number in range(120))), 60)
        assert worker.alive
        await asyncio.to_thread(worker.close)
        return seen

    assert asyncio.run(main()) == list(range(120))
    assert 2 <= state["most"] <= 3


def test_a_full_queue_says_when_to_come_again():
    model = Model(held=True)

    async def scenario(worker):
        first = worker.submit("a", 0)
        await first_taken(worker, first)
        taken = [worker.submit("a", n) for n in range(3)]
        with pytest.raises(BusyError, match="try again in 1 s") as error:
            worker.submit("a", 9)
        assert (error.value.seconds, worker.waiting) == (1, 3)
        model.may.set()
        assert len(await asyncio.gather(*taken)) == 3
        return await worker.submit("a", 10)

    assert run(scenario, model, queue=4) == "a 10"


def test_nobody_waits_until_an_idle_connection_is_closed():
    model = Model(held=True)

    async def scenario(worker):
        first = worker.submit("a", 0, size=1000)  # at .02 s a text: 20 s
        await first_taken(worker, first)
        with pytest.raises(BusyError, match="try again in 3 s"):
            worker.submit_all(["a"], 1, patient=True)
        model.may.set()
        return await first

    assert run(scenario, model, queue=4, longest_wait=3.0) == "a 0"


def test_who_asks_for_much_waits_for_no_more_room_than_others():
    model = Model(held=True)

    async def scenario(worker):
        first = worker.submit("a", 0)
        await first_taken(worker, first)
        taken = [worker.submit("a", n, size=size) for n, size in ((1, 2), (2, 50))]
        with pytest.raises(BusyError):
            worker.submit("a", 3)
        model.may.set()
        return await asyncio.gather(*taken)

    assert run(scenario, model, queue=4) == ["a 1", "a 2"]


def test_while_much_is_read_some_may_wait():
    model = Model(held=True)

    async def scenario(worker):
        first = worker.submit("a", 0, size=50)
        await first_taken(worker, first)
        taken = [worker.submit("a", n) for n in range(2)]
        with pytest.raises(BusyError):
            worker.submit("a", 9)
        model.may.set()
        return await asyncio.gather(*taken)

    assert run(scenario, model, queue=8) == ["a 0", "a 1"]


def test_of_a_full_queue_one_thread_does_not_take_all():
    """36 are in hand, and two threads: half of them for each."""
    model, begun = Model(held=True), []

    def do(kind, given):
        begun.append(len(given))
        return model(kind, given)

    async def main():
        worker = Batcher(do, queue=36, together=100, together_characters=1000, threads=2)
        firsts = [worker.submit("first", 0), worker.submit("second", 0)]
        while worker.waiting:
            await asyncio.sleep(0.001)
        others = [worker.submit("a", number) for number in range(34)]
        model.may.set()
        seen = await asyncio.gather(*firsts, *others)
        await asyncio.to_thread(worker.close)
        return seen

    assert len(asyncio.run(asyncio.wait_for(main(), 60))) == 36
    assert sorted(begun) == [1, 1, 16, 18]


async def answer_eight(worker, model):
    """Read one, and eight together, as many as may come again."""
    first = worker.submit("a", 0)
    await first_taken(worker, first)
    many = [worker.submit("a", n) for n in range(1, 9)]
    model.may.set()
    await asyncio.gather(*many)


def test_those_who_were_answered_and_come_again_are_waited_for(monkeypatch):
    monkeypatch.setattr("wellread.server.batching._MOMENT", 2.0)
    monkeypatch.setattr("wellread.server.batching._PATIENCE", 1e9)
    model = Model(held=True)

    async def scenario(worker):
        await answer_eight(worker, model)
        few = [worker.submit("a", n) for n in range(7)]
        await asyncio.sleep(0.1)
        assert worker.waiting == 7
        await asyncio.gather(*few, worker.submit("a", 7))

    run(scenario, model)
    assert [len(given) for _, given in model.batches] == [1, 8, 8]


def test_who_is_waited_for_and_does_not_come_is_forgotten(monkeypatch):
    """Three of eight come again: they are read once the moment is over, and three are expected from then on."""
    monkeypatch.setattr("wellread.server.batching._MOMENT", 0.5)
    monkeypatch.setattr("wellread.server.batching._PATIENCE", 1e9)
    model = Model(held=True)

    async def scenario(worker):
        await answer_eight(worker, model)
        for _ in range(3):
            await asyncio.gather(*(worker.submit("a", n) for n in range(3)))

    run(scenario, model)
    assert [len(given) for _, given in model.batches] == [1, 8, 3, 3, 3]


def test_who_comes_alone_waits_for_a_moment_at_most():
    async def scenario(worker):
        await asyncio.gather(*(worker.submit("a", n) for n in range(50)))
        await worker.submit("a", 0)
        begin = time.monotonic()
        for _ in range(20):  # after one alone there is nothing to wait for
            await worker.submit("a", 0)
        return time.monotonic() - begin

    model = Model()
    assert run(scenario, model) < 20
    assert [len(given) for _, given in model.batches[-20:]] == [1] * 20


@pytest.mark.parametrize(("queue", "share", "others"), [(1, 0, 1), (2, 1, 1), (5, 2, 2), (8, 4, 3)])
def test_who_comes_again_by_itself_has_half_of_the_queue(queue, share, others):
    """And never the last place: somebody else finds one even where there is a single one."""
    model = Model(held=True)

    async def scenario(worker):
        first = worker.submit("a", 0)
        await first_taken(worker, first)
        taken = [worker.submit_all("a", n, patient=True)[0] for n in range(share)]
        with pytest.raises(BusyError):
            worker.submit_all("a", 9, patient=True)
        taken += [worker.submit("a", n) for n in range(others)]
        with pytest.raises(BusyError):
            worker.submit("a", 9)
        model.may.set()
        assert len(await asyncio.gather(*taken)) == share + others
        return await worker.submit_all("a", 10, patient=True)[0]  # what was read takes no room any more

    assert run(scenario, model, queue=queue) == "a 10"


@pytest.mark.parametrize(("size", "more"), [(1, 0), (8, 2)])
def test_many_fill_the_queue_and_few_who_send_much_leave_some_room(size, more):
    """Eight texts are in hand: of as many clients, or of one, beside whom a quarter of eight may wait."""
    model = Model(held=True)

    async def scenario(worker):
        taken = [worker.submit("a", 0, size=size)]
        await first_taken(worker, taken[0])
        taken += [worker.submit("a", n) for n in range(8 // size - 1 + more)]
        with pytest.raises(BusyError):
            worker.submit("a", 9)
        model.may.set()
        return len(await asyncio.gather(*taken))

    assert run(scenario, model, queue=8) == 8 // size + more


def test_several_kinds_are_all_taken_or_none():
    model = Model(held=True)

    async def scenario(worker):
        first = worker.submit("a", 0)
        await first_taken(worker, first)
        taken = worker.submit_all("ab", 1, size=2)
        with pytest.raises(BusyError):
            worker.submit_all("ab", 2)
        assert worker.waiting == 4
        model.may.set()
        return await asyncio.gather(first, *taken)

    assert run(scenario, model, queue=4) == ["a 0", "a 1", "b 1"]


def test_an_error_is_theirs_who_asked_and_the_thread_goes_on():
    async def scenario(worker):
        with pytest.raises(ValueError, match="broken"):
            await worker.submit("broken", 0)
        with pytest.raises(ValueError, match="not bad"):
            await worker.submit("a", "bad")
        assert worker.alive
        return await worker.submit("a", "good")

    assert run(scenario, Model()) == "a good"


def test_who_is_read_together_with_one_that_fails_is_answered():
    model = Model(held=True)

    async def scenario(worker):
        first = worker.submit("a", 0)
        await first_taken(worker, first)
        requested = [worker.submit("a", one) for one in (1, "poison", "bad", 2)]
        model.may.set()
        return [type(one) if isinstance(one, Exception) else one for one in await gather(*requested)]

    async def gather(*requested):
        return await asyncio.gather(*requested, return_exceptions=True)

    assert run(scenario, model) == ["a 1", ValueError, ValueError, "a 2"]
    assert [given for _, given in model.batches[1:]] == [[1, "poison", "bad", 2], [1], ["poison"], ["bad"], [2]]


def test_the_first_are_answered_while_others_are_made():
    """And may come again: their places in the queue are free, and they are read with what comes next."""
    may, batches = threading.Event(), []

    def do(kind, given):
        batches.append(list(given))
        yield given[:2]
        assert may.wait(20)
        yield given[2:]

    async def main():
        worker = Batcher(do, queue=4, together=4, together_characters=1000)
        requested = worker.submit_all("aaaa", "x")
        await asyncio.wait_for(asyncio.gather(*requested[:2]), 20)
        assert not any(one.done() for one in requested[2:])
        again = [worker.submit("a", number) for number in range(2)]
        with pytest.raises(BusyError):
            worker.submit("a", 9)
        may.set()
        seen = await asyncio.wait_for(asyncio.gather(*requested, *again), 20)
        await asyncio.to_thread(worker.close)
        return seen

    assert asyncio.run(main()) == ["x", "x", "x", "x", 0, 1]
    assert batches == [["x"] * 4, [0, 1]]


@pytest.mark.parametrize("broken", [ValueError("broken"), None])
def test_where_a_batch_fails_after_the_first_were_answered_the_rest_are_tried_each(broken):
    """None: it ends without a word, and those who are left are not forgotten."""
    batches, may = [], threading.Event()

    def do(kind, given):
        assert may.wait(20)
        batches.append(list(given))
        yield [f"{given[0]}!"]
        if len(given) > 1 and broken is not None:
            raise broken

    async def main():
        worker = Batcher(do, queue=9, together=9, together_characters=1000)
        held = worker.submit("first", 0)
        await first_taken(worker, held)
        requested = [worker.submit("a", number) for number in range(3)]
        may.set()
        seen = await asyncio.wait_for(asyncio.gather(held, *requested), 20)
        await asyncio.to_thread(worker.close)
        return seen

    assert asyncio.run(main()) == ["0!", "0!", "1!", "2!"]
    assert batches == [[0], [0, 1, 2], [1], [2]]


def test_whatever_becomes_of_jobs_nothing_is_left_of_them():
    """Answered, failed, given up, or asked by who comes again: each has left the queue, and once."""
    may = threading.Event()

    def do(kind, given):
        assert may.wait(20)
        yield given[:1]
        if len(given) > 1:
            raise ValueError("broken")

    async def main():
        worker = Batcher(do, queue=20, together=20, together_characters=1000)
        first = worker.submit("first", 0)
        await first_taken(worker, first)
        requested = [worker.submit("a", number, size=2) for number in range(4)]
        requested += worker.submit_all("ab", 9, size=3, patient=True)
        for one in (requested[0], requested[2]):
            one.cancel()
        may.set()
        seen = await asyncio.wait_for(asyncio.gather(first, *requested, return_exceptions=True), 20)
        await asyncio.to_thread(worker.close)
        assert (worker.waiting, worker._taken, worker._jobs, worker._patient) == (0, 0, 0, 0)
        return [one for one in seen if not isinstance(one, asyncio.CancelledError)]

    assert asyncio.run(main()) == [0, 1, 3, 9, 9]


@pytest.mark.parametrize("error", [ValueError("late"), SystemExit()])
@pytest.mark.parametrize("count", [1, 3])
def test_work_that_fails_after_its_last_answer_ends_no_thread(error, count):
    def do(kind, given):
        yield given
        if kind == "late":
            raise error

    async def main():
        worker = Batcher(do, queue=9, together=9, together_characters=1000)
        await asyncio.wait_for(asyncio.gather(*worker.submit_all(["late"] * count, 1)), 20)
        return await asyncio.wait_for(worker.submit("next", 2), 20), await asyncio.to_thread(worker.close)

    assert asyncio.run(main()) == (2, None)


def test_who_waits_is_read_by_one_that_is_free_though_another_gives_answers_all_the_while():
    """Each answer is a reason to wait for who may come again, but all together are none to wait for more than that."""
    begun, ended = threading.Event(), []

    def do(kind, given):
        if kind == "other":
            begun.set()
        for one in given:
            if not begun.is_set():
                time.sleep(0.002)
            yield [one]
        ended.append((kind, begun.is_set()))

    async def main():
        worker = Batcher(do, queue=2000, together=1000, together_characters=1000, threads=2)
        many = worker.submit_all(["many"] * 999, 1)
        await asyncio.wait_for(many[60], 20)
        await asyncio.wait_for(asyncio.gather(*many, worker.submit("other", 2)), 20)
        await asyncio.to_thread(worker.close)

    asyncio.run(main())
    assert ("many", True) in ended


def test_a_batch_is_counted_before_its_last_answer_is_given():
    seen = []

    async def main():
        worker = Batcher(
            lambda kind, given: [given[:1], given[1:]],
            queue=9,
            together=9,
            together_characters=1000,
            watch=lambda batch_info: (time.sleep(0.2), seen.append(batch_info)),
        )
        first, second = worker.submit_all("aa", 1)
        await asyncio.wait_for(first, 20)
        counted = [len(seen)]
        await asyncio.wait_for(second, 20)
        counted.append(len(seen))
        await asyncio.to_thread(worker.close)
        return counted

    assert asyncio.run(main()) == [0, 1]
    assert (seen[0].jobs, seen[0].texts) == (2, 2)


def test_what_nobody_waits_for_any_more_is_not_done():
    model = Model(held=True)

    async def scenario(worker):
        first = worker.submit("a", 0)
        await first_taken(worker, first)
        gone, other = worker.submit("a", 1), worker.submit("a", 2)
        gone.cancel()
        model.may.set()
        await other

    run(scenario, model)
    assert [given for _, given in model.batches] == [[0], [2]]


def test_what_was_taken_is_finished_before_the_end():
    model = Model(held=True)

    async def scenario(worker):
        futures = [worker.submit("a", n) for n in range(20)]
        closing = asyncio.create_task(asyncio.to_thread(worker.close))
        while True:
            try:
                futures.append(worker.submit("a", 99))
            except ClosedError:
                break
            await asyncio.sleep(0.001)
        model.may.set()
        await closing
        return await asyncio.gather(*futures)

    assert run(scenario, model, together=3)[:20] == [f"a {n}" for n in range(20)]


def test_the_watch_callback_gets_every_batch():
    seen = []

    async def scenario(worker):
        await worker.submit("a", 0, size=3)

    begin = time.monotonic()
    run(scenario, Model(), watch=seen.append)
    assert [(one.jobs, one.texts) for one in seen] == [(1, 3)]
    assert 0 <= seen[0].waited <= time.monotonic() - begin
