// Tests of locks, semaphores, events, conditions and words.
#include <algorithm>
#include <thread>

#include "core_test.hpp"

namespace dragon {
namespace {

TEST(lock_excludes_other_holders) {
    Arena& a = new_arena();
    auto lock = new_lock();
    uint64_t counter = 0;
    std::vector<std::thread> threads;
    for (uint64_t t = 1; t <= 3; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 5000; ++i) {
                CHECK(lock->acquire(a.self(), t, long_deadline()) == Status::Ok);
                ++counter;
                CHECK(lock->release(a.self(), t) == Lock::Release::Ok);
            }
        });
    for (auto& t : threads) t.join();
    CHECK(counter == 15'000);
    CHECK(lock->release(a.self(), 1) == Lock::Release::NotLocked);
    CHECK(lock->acquire(a.self(), 1, 0) == Status::Ok);
    CHECK(lock->acquire(a.self(), 1, 0) == Status::Timeout);
    CHECK(lock->acquire(a.self(), 1, short_deadline()) == Status::Timeout);
    CHECK(lock->owner() == a.self() && lock->count() == 1);
    CHECK(lock->release(a.self(), 2) == Lock::Release::Ok);
    CHECK(lock->count() == 0);
    lock->destroyed = 1;
    CHECK(lock->acquire(a.self(), 1, long_deadline()) == Status::Destroyed);
}

TEST(recursive_lock_counts_acquisitions) {
    Arena& a = new_arena();
    auto lock = new_lock(true);
    for (uint32_t i = 1; i <= 3; ++i) {
        CHECK(lock->acquire(a.self(), 1, 0) == Status::Ok);
        CHECK(lock->count() == i);
    }
    CHECK(lock->acquire(a.self(), 2, 0) == Status::Timeout);
    CHECK(lock->release(a.self(), 2) == Lock::Release::NotMine);
    for (int i = 0; i < 3; ++i) CHECK(lock->release(a.self(), 1) == Lock::Release::Ok);
    CHECK(lock->release(a.self(), 1) == Lock::Release::NotMine);
    CHECK(lock->acquire(a.self(), 2, 0) == Status::Ok);
}

TEST(lock_of_dead_holder_is_recovered) {
    Arena& a = new_arena();
    auto lock = new_lock();
    auto hold_and_die = [&] {
        return run_and_kill_child(
            [&] { CHECK(lock->acquire(arena().self(), 1, long_deadline()) == Status::Ok); });
    };
    hold_and_die();
    CHECK(lock->acquire(a.self(), 1, long_deadline()) == Status::Recovered);
    CHECK(lock->release(a.self(), 1) == Lock::Release::Ok);
    hold_and_die();
    // Shorter than the sleep after which a waiter checks whether the holder is alive.
    CHECK(lock->acquire(a.self(), 1, deadline_after(0.001)) == Status::Recovered);
    CHECK(lock->release(a.self(), 1) == Lock::Release::Ok);
    CHECK(a.reap(hold_and_die()));
    CHECK(lock->acquire(a.self(), 1, 0) == Status::Recovered);
    CHECK(a.reap_dead() == 2);
}

TEST(semaphore_counts_up_to_its_bound) {
    new_arena();
    auto s = new_semaphore(2, 3);
    CHECK(s->acquire(0) == Status::Ok && s->acquire(0) == Status::Ok);
    CHECK(s->acquire(0) == Status::Timeout && s->acquire(short_deadline()) == Status::Timeout);
    CHECK(!s->release(4) && s->release(3) && !s->release(1));
    CHECK(s->value() == 3);
    while (s->value()) CHECK(s->acquire(0) == Status::Ok);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
        threads.emplace_back([&] { CHECK(s->acquire(long_deadline()) == Status::Ok); });
    usleep(20'000);
    CHECK(s->release(3));  // one call wakes all three
    for (auto& t : threads) t.join();
    CHECK(s->value() == 0);
    std::thread waiter([&] { CHECK(s->acquire(long_deadline()) == Status::Destroyed); });
    usleep(20'000);
    s->destroy();
    waiter.join();
}

TEST(dead_semaphore_waiter_does_not_delay_wakeups) {
    new_arena();
    auto s = new_semaphore(0, 1000);
    pid_t child = fork_child([&] { s->acquire(kForever); });
    usleep(100'000);
    kill(child, SIGKILL);
    wait_status(child);
    CHECK(s->release(1));  // the killed process would have been woken
    CHECK(s->acquire(0) == Status::Ok);
    std::vector<Nanoseconds> waits;
    auto other = new_semaphore(0, 1000);
    std::thread echo([&] {
        for (int i = 0; i < 20; ++i) {
            CHECK(other->acquire(long_deadline()) == Status::Ok);
            usleep(2000);  // until the other thread sleeps
            CHECK(s->release(1));
        }
    });
    for (int i = 0; i < 20; ++i) {
        CHECK(s->release(1));  // no process sleeps but the killed one
        CHECK(s->acquire(0) == Status::Ok);
        CHECK(other->release(1));
        Nanoseconds start = now();
        CHECK(s->acquire(long_deadline()) == Status::Ok);
        waits.push_back(now() - start);
    }
    echo.join();
    // An undetected wakeup would cost 0.1 s each time; on a busy machine some waits take as long for other
    // reasons.
    std::sort(waits.begin(), waits.end());
    CHECK(waits[5] < kSecond / 20);
}

TEST(event_wakes_all_waiters) {
    new_arena();
    auto e = new_event();
    CHECK(!e->is_set() && e->wait(0) == Status::Timeout && e->wait(short_deadline()) == Status::Timeout);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([&] { CHECK(e->wait(long_deadline()) == Status::Ok); });
    usleep(20'000);
    e->set();
    for (auto& t : threads) t.join();
    CHECK(e->is_set() && e->wait(0) == Status::Ok);
    e->clear();
    std::thread waiter([&] { CHECK(e->wait(long_deadline()) == Status::Destroyed); });
    usleep(20'000);
    e->destroy();
    waiter.join();
}

TEST(condition_notifies_waiters_in_order) {
    Arena& a = new_arena();
    auto c = new_condition();
    uint64_t before = block_count();
    Offset first = c->enter(a), second = c->enter(a), third = c->enter(a);
    CHECK(c->notify(a, 2) == 2);
    CHECK(c->sleep(a, first, long_deadline()) == Status::Ok &&
          c->sleep(a, second, long_deadline()) == Status::Ok);
    CHECK(c->sleep(a, third, short_deadline()) == Status::Timeout);
    CHECK(c->leave(a, second) && c->leave(a, first));
    std::thread thread([&] { CHECK(c->sleep(a, third, long_deadline()) == Status::Ok); });
    usleep(20'000);
    CHECK(c->notify(a, 10) == 1);
    thread.join();
    CHECK(c->leave(a, third));
    CHECK(c->notify(a, 1) == 0);
    CHECK(block_count() == before);
    Offset fourth = c->enter(a);
    std::thread waiter([&] { CHECK(c->sleep(a, fourth, long_deadline()) == Status::Destroyed); });
    usleep(20'000);
    c->destroy(a);
    waiter.join();
    c->leave(a, fourth);
}

TEST(notification_of_dead_waiter_goes_to_next_waiter) {
    Arena& a = new_arena();
    auto c = new_condition();
    uint64_t before = block_count();
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = fork_child([&] {
        c->enter(arena());
        CHECK(write(ready[1], "x", 1) == 1);
        pause();
    });
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    Offset mine = c->enter(a);
    CHECK(c->notify(a, 1) == 1);  // the child, which entered first
    CHECK(c->sleep(a, mine, 0) == Status::Timeout);
    kill(child, SIGKILL);
    wait_status(child);
    CHECK(a.reap(child));
    CHECK(c->sleep(a, mine, 0) == Status::Ok);
    CHECK(c->leave(a, mine));
    run_and_kill_child([&] { c->enter(arena()); });
    mine = c->enter(a);
    CHECK(c->notify(a, 1) == 1);  // this process, not the dead one
    CHECK(c->leave(a, mine));
    CHECK(a.reap_dead() == 1);
    CHECK(block_count() == before);
}

TEST(wait_returns_when_word_changes) {
    new_arena();
    auto w = new_words(3);
    CHECK(w->count() == 3 && w->at(2) == 0);
    CHECK(w->wait(1, 0, short_deadline()) == Status::Timeout);
    CHECK(w->wait(1, 7, 0) == Status::Ok);
    std::thread waiter([&] { CHECK(w->wait(1, 0, long_deadline()) == Status::Ok); });
    usleep(20'000);
    w->at(0) = 1;
    w->changed();
    w->at(1) = 5;
    w->changed();
    waiter.join();
    std::thread destroyed([&] { CHECK(w->wait(2, 0, long_deadline()) == Status::Destroyed); });
    usleep(20'000);
    w->destroy();
    destroyed.join();
}

}  // namespace
}  // namespace dragon
