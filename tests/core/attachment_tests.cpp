// Tests of the references to shared objects: attachments of processes, and messages that carry objects.
#include <thread>

#include "core_test.hpp"

namespace dragon {
namespace {

TEST(object_exists_while_a_process_is_attached) {
    Arena& a = new_arena();
    auto c = new_channel();
    CHECK(put(*c, 1) == Status::Ok && put(*c, 2, 5000) == Status::Ok);
    CHECK(try_attach(c.handle) && !try_attach(c.handle, Kind::Lock));
    c.release();
    CHECK(a.exists(c.handle));
    c.release();
    CHECK(!a.exists(c.handle) && !try_attach(c.handle));
    CHECK(block_count() == 1);
    auto next = new_channel();
    CHECK(next.handle.offset == c.handle.offset && next.handle.generation != c.handle.generation);
    CHECK(!try_attach(c.handle));
    c.release();  // has no effect on an object that no longer exists
    CHECK(a.exists(next.handle));
    CHECK(!a.exists({0, 0}) && !a.exists({UINT64_MAX, 0}) && !a.exists({next.handle.offset + 8, 0}));
}

TEST(sent_object_exists_until_released_or_sender_reaped) {
    Arena& a = new_arena();
    auto c = new_channel();
    a.send(c.handle, Role::Plain);
    c.release();
    CHECK(a.exists(c.handle));
    CHECK(try_attach(c.handle));
    c.release();
    CHECK(!a.exists(c.handle));
    // The record of that message does not count for the next object in the same block.
    auto next = new_channel();
    CHECK(next.handle.offset == c.handle.offset);
    pid_t child = fork_child([&] {
        CHECK(try_attach(next.handle));
        arena().send(next.handle, Role::Plain);
        kill_self();
    });
    wait_status(child);
    next.release();
    CHECK(a.exists(next.handle));
    CHECK(a.reap(child));  // the sender has ended, and no process has attached
    CHECK(!a.exists(next.handle));
    CHECK(block_count() == 1);
}

TEST(records_of_sent_objects_are_reused) {
    Arena& a = new_arena();
    for (int i = 0; i < 2000; ++i) {
        auto c = new_semaphore(1, 1);
        a.send(c.handle, Role::Plain);
        CHECK(try_attach(c.handle, Kind::Semaphore));
        c.release();
        c.release();
    }
    CHECK(block_count() < 6);
}

TEST(reap_releases_sent_object_in_reused_block) {
    Arena& a = new_arena();
    pid_t child = fork_child([&] {
        for (int i = 0; i < 3; ++i) {
            auto c = new_channel();
            arena().send(c.handle, Role::Plain);
            if (i < 2) {
                CHECK(try_attach(c.handle));
                c.release();
            }
            c.release();
        }
        kill_self();
    });
    wait_status(child);
    CHECK(a.reap(child));
    CHECK(block_count() == 0);
}

TEST(reap_releases_attachments_of_dead_process) {
    Arena& a = new_arena();
    auto c = new_channel(0, true, Role::Reader);
    pid_t child = run_and_kill_child([&] {
        CHECK(try_attach(c.handle, Kind::Channel, Role::Writer));
        for (int i = 0; i < 200; ++i) new_channel();
        arena().allocate(3000);
        CHECK(put(*c, 7, 1000) == Status::Ok);
    });
    CHECK(block_count() > 200);
    CHECK(!c->end_is_gone(Role::Writer));
    CHECK(a.reap(child) && !a.reap(child));
    CHECK(c->end_is_gone(Role::Writer));
    CHECK(get_or_fail(*c) == 7);
    c.release();
    CHECK(block_count() == 1);
}

TEST(release_by_forked_child_has_no_effect) {
    Arena& a = new_arena();
    auto c = new_channel();
    join_child(fork_child([&] { c.release(); }));
    CHECK(a.exists(c.handle));
}

TEST(concurrent_attach_send_and_release) {
    Arena& a = new_arena();
    auto c = new_channel();
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 2000; ++i) {
                CHECK(try_attach(c.handle));
                if (i % 3 == 0) {
                    a.send(c.handle, Role::Plain);
                    CHECK(try_attach(c.handle));
                    c.release();
                }
                auto own = new_channel();
                own.release();
                c.release();
            }
        });
    for (auto& t : threads) t.join();
    c.release();
    CHECK(!a.exists(c.handle));
    CHECK(block_count() < 6);
}

}  // namespace
}  // namespace dragon
