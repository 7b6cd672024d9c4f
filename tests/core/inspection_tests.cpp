// Tests of what other processes see of a run: waits, tasks, recorded spans, and queues.
#include <sched.h>

#include "core_test.hpp"

namespace dragon {
namespace {

Attached<Channel> new_user_queue(const Origin& origin) {
    auto* a = &arena();
    return {a->create<Channel>(Kind::Channel, Role::Plain, sizeof(Channel), 0, false, origin), Role::Plain};
}

TEST(wait_is_reported_with_its_object_and_thread) {
    Arena& a = new_arena();
    auto channel = new_channel();
    CHECK(a.waits().empty());
    int place = a.begin_wait(channel.handle.offset, Purpose::Get, 7, 1234);
    std::vector<WaitInfo> waits = a.waits();
    CHECK(waits.size() == 1);
    CHECK(waits[0].pid == getpid() && waits[0].thread == 7 && waits[0].since == 1234);
    CHECK(waits[0].object == channel.handle.offset && waits[0].kind == Kind::Channel);
    CHECK(waits[0].purpose == Purpose::Get);
    CHECK(*waits[0].attached == std::vector<pid_t>{getpid()});
    a.end_wait(place);
    CHECK(a.waits().empty());
}

TEST(waits_of_several_threads_are_recorded_separately) {
    Arena& a = new_arena();
    auto one = new_channel(), two = new_channel();
    int first = a.begin_wait(one.handle.offset, Purpose::Get, 1, 0);
    int second = a.begin_wait(two.handle.offset, Purpose::Put, 2, 0);
    a.end_wait(first);
    CHECK(a.waits().size() == 1 && a.waits()[0].object == two.handle.offset);
    while (first != -1) first = a.begin_wait(one.handle.offset, Purpose::Get, 3, 0);
    a.end_wait(first);  // -1: has no effect
    CHECK(a.waits().size() > 1);
    a.end_wait(second);
}

TEST(reap_removes_wait_of_dead_process) {
    Arena& a = new_arena();
    auto channel = new_channel();
    pid_t pid = run_and_kill_child([&] { arena().begin_wait(channel.handle.offset, Purpose::Get, 1, 0); });
    CHECK(a.reap(pid));
    CHECK(a.waits().empty());
}

TEST(inquiry_is_active_until_its_deadline) {
    Arena& a = new_arena();
    CHECK(!a.asked());
    a.inquire(deadline_after(20));
    CHECK(a.asked());
    a.inquire(now());
    CHECK(!a.asked());
}

TEST(spans_are_recorded_only_while_tracing) {
    Arena& a = new_arena();
    auto channel = new_channel();
    uint64_t next = 0, lost;
    auto wait_for = [&](Nanoseconds duration) {
        a.end_wait(a.begin_wait(channel.handle.offset, Purpose::Get, 7, now() - duration));
    };
    wait_for(50'000);
    CHECK(a.take_spans(next, lost).empty());
    a.trace(true);
    wait_for(50'000);
    wait_for(-kSecond);  // too short to be recorded, even if this thread is delayed by other processes
    a.end_task(3, 8, now() - 20'000);
    std::vector<SpanInfo> spans = a.take_spans(next, lost);
    CHECK(spans.size() == 2 && lost == 0);
    CHECK(spans[0].pid == getpid() && spans[0].thread == 7 && spans[0].purpose == Purpose::Get);
    CHECK(spans[0].what == channel.handle.offset && spans[0].kind == Kind::Channel);
    CHECK(spans[0].end - spans[0].start >= 50'000);
    CHECK(spans[1].what == 3 && spans[1].purpose == Purpose::Task && spans[1].thread == 8);
    CHECK(a.take_spans(next, lost).empty());
    a.trace(false);
    wait_for(50'000);
    CHECK(a.take_spans(next, lost).empty() && lost == 0);
}

TEST(running_task_is_reported_until_it_ends) {
    Arena& a = new_arena();
    a.trace(true);
    Nanoseconds start = now() - 20'000;
    a.begin_task(4, 8, start);
    std::vector<SpanInfo> running = a.running_tasks();
    CHECK(running.size() == 1 && running[0].pid == getpid() && running[0].thread == 8);
    CHECK(running[0].what == 4 && running[0].purpose == Purpose::Task && running[0].start == start);
    CHECK(running[0].end == 0 && a.waits().empty());
    a.end_task(4, 8, start);
    CHECK(a.running_tasks().empty());
}

TEST(task_of_ended_process_is_recorded_as_failed) {
    Arena& a = new_arena();
    a.trace(true);
    Nanoseconds start = now() - 20'000;
    pid_t child = fork_child([&] { a.begin_task(4, 8, start); });
    join_child(child);
    a.reap_dead();
    uint64_t next = 0, lost;
    std::vector<SpanInfo> spans = a.take_spans(next, lost);
    CHECK(spans.size() == 1 && spans[0].pid == child && spans[0].what == (4 | kTaskFailed));
    CHECK(spans[0].start == start && a.running_tasks().empty());
}

TEST(newest_spans_are_kept_after_overflow) {
    Arena& a = new_arena();
    a.trace(true);
    for (uint64_t i = 0; i < kSpans + 100; ++i) a.end_task(i, 1, now() - 20'000);
    uint64_t next = 0, lost;
    std::vector<SpanInfo> spans = a.take_spans(next, lost);
    CHECK(lost == 100 && spans.size() == kSpans && next == kSpans + 100);
    CHECK(spans.front().what == 100 && spans.back().what == kSpans + 99);
}

TEST(spans_can_be_read_while_processes_record_them) {
    Arena& a = new_arena();
    a.trace(true);
    constexpr uint64_t kEach = 20'000;
    std::vector<pid_t> children;
    for (uint64_t which : {1, 2})
        children.push_back(fork_child([&] {
            for (uint64_t i = 0; i < kEach; ++i) a.end_task(which, which, now() - 20'000);
        }));
    uint64_t next = 0, lost, all_lost = 0, seen = 0;
    auto take = [&] {
        for (const SpanInfo& s : a.take_spans(next, lost)) {
            CHECK(s.what == s.thread && s.end > s.start && s.purpose == Purpose::Task);
            ++seen;
        }
        all_lost += lost;
    };
    for (int i = 0; i < 1000; ++i) take();
    for (pid_t child : children) join_child(child);
    take();
    CHECK(seen + all_lost == 2 * kEach);
}

TEST(queues_of_users_are_listed_with_their_state) {
    Arena& a = new_arena();
    std::vector<Attached<Channel>> own, users;
    for (uint32_t i = 1; i <= 100; ++i) {
        own.push_back(new_channel());
        users.push_back(new_user_queue({a.next_queue(), 7, {}, {}}));
        CHECK(put(*users.back(), i, 232) == Status::Ok);
    }
    std::vector<Offset> found;
    uint64_t next = 0;
    int steps = 0;
    do {
        auto some = a.find_queues(next, 50, next);
        found.insert(found.end(), some.begin(), some.end());
        ++steps;
    } while (next);
    CHECK(found.size() == 100 && steps > 1);
    CHECK(put(*users[0], 1, 1000) == Status::Ok && get_or_fail(*users[0]) == 1);
    users[1]->destroy(a);
    users[2].release();
    auto states = a.queues(found);
    CHECK(states.size() == 98);
    CHECK(states[0].number == 1 && states[0].maker == 7 && !states[0].pool);
    CHECK(states[0].size == 1 && states[0].taken == 1 && states[0].bytes == kDataStart + 1000);
    CHECK(states[1].number == 4 && states[1].size == 1 && states[1].taken == 0 &&
          states[1].bytes == kSmallBlock);
}

TEST(queue_state_counts_waiter_until_it_is_reaped) {
    Arena& a = new_arena();
    auto c = new_user_queue({a.next_queue(), 7, {}, {}});
    pid_t child = fork_child([&] {
        a.begin_wait(c.handle.offset, Purpose::Get, 1, now());
        CHECK(get_or_fail(*c) == 0);
    });
    while (a.queues({c.handle.offset})[0].getting == 0) sched_yield();
    kill(child, SIGKILL);
    wait_status(child);
    a.reap(child);
    CHECK(a.queues({c.handle.offset})[0].getting == 0);
}

TEST(queues_can_be_listed_while_a_process_makes_them) {
    Arena& a = new_arena();
    auto words = new_words(1);
    pid_t child = fork_child([&] {
        for (;;) {
            auto tasks = new_user_queue({a.next_queue(), 7, new_channel().handle, new_words(3).handle});
            CHECK(put(*tasks, 1) == Status::Ok);
            tasks.release();
            words->at(0).fetch_add(1);
        }
    });
    while (words->at(0).load() < 1000) {
        uint64_t next;
        for (const QueueInfo& q : a.queues(a.find_queues(0, UINT32_MAX, next)))
            CHECK(q.maker == 7 && q.number > 0 && q.size <= 1 && q.running <= 3);
    }
    kill(child, SIGKILL);
    wait_status(child);
    a.reap(child);
    uint64_t next;
    CHECK(a.queues(a.find_queues(0, UINT32_MAX, next)).empty());
}

}  // namespace
}  // namespace dragon
