// Tests of the slots of processes: how they are reserved, taken, left and reaped.

#include <atomic>
#include <thread>

#include "core_test.hpp"

namespace dragon {
namespace {

TEST(reserved_slot_is_attached_before_its_process_starts) {
    Arena& a = new_arena();
    auto c = new_channel();
    std::vector<Attached<Semaphore>> more;
    for (int i = 0; i < 100; ++i) more.push_back(new_semaphore(1, 1));
    OwnerId slot = a.reserve_slot();
    a.attach_for(slot, c.handle, Role::Plain);
    for (auto& m : more) a.attach_for(slot, m.handle, Role::Plain);
    CHECK(a.alive(slot));
    int go[2];
    CHECK(pipe(go) == 0);
    pid_t child = fork_child([&] {
        char byte;
        CHECK(read(go[0], &byte, 1) == 1);
        arena().take_slot(slot);
        CHECK(arena().self() == slot);
        CHECK(try_attach(c.handle));
        CHECK(put(*c, 5) == Status::Ok);
        arena().leave();
    });
    a.promise_slot(slot, child);
    CHECK(a.pid_of(slot) == child);
    c.release();
    for (auto& m : more) m.release();
    CHECK(a.exists(c.handle) && a.exists(more[99].handle));
    CHECK(write(go[1], "x", 1) == 1);
    join_child(child);
    CHECK(!a.exists(c.handle) && !a.exists(more[99].handle));  // leave() has released them
    CHECK(!a.alive(slot) && !a.reap(child));
    CHECK(block_count() <= 2);
}

TEST(slot_is_reaped_if_its_process_never_took_it) {
    Arena& a = new_arena();
    auto c = new_channel();
    OwnerId slot = a.reserve_slot();
    a.attach_for(slot, c.handle, Role::Plain);
    c.release();
    pid_t child = fork_child([] { _exit(1); });
    a.promise_slot(slot, child);
    wait_status(child);
    CHECK(a.reap(child));
    CHECK(!a.exists(c.handle) && !a.alive(slot));
    CHECK(block_count() == 1);
}

TEST(reused_process_id_is_distinguished) {
    Arena& a = new_arena();
    OwnerId slot = a.reserve_slot();
    a.fill_slot(slot, getpid());
    CHECK(a.alive(slot) && !a.reap(getpid()));
    OwnerId promised = a.reserve_slot();
    // A process that ended before it took its slot, with the id that this process has now.
    a.promise_slot(promised, getpid());
    CHECK(a.reap(getpid()));
    CHECK(a.alive(slot) && !a.alive(promised));
}

TEST(leave_keeps_attachments_while_blocks_are_owned) {
    Arena& a = new_arena();
    auto c = new_channel();
    pid_t child = fork_child([&] {
        CHECK(try_attach(c.handle));
        arena().allocate(100);
        arena().leave();
    });
    join_child(child);
    c.release();
    CHECK(a.exists(c.handle));
    CHECK(a.reap(child));
    CHECK(block_count() == 1);
}

TEST(concurrent_reaps_of_a_process_succeed_once) {
    Arena& a = new_arena();
    pid_t child = run_and_kill_child([] { arena().allocate(5000); });
    std::atomic<int> reaped{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([&] { reaped += a.reap(child); });
    for (auto& t : threads) t.join();
    CHECK(reaped == 1);
    CHECK(block_count() == 0);
}

}  // namespace
}  // namespace dragon
