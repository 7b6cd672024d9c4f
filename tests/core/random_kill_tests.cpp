// Processes that use the same objects are killed at random times.
#include <cstdlib>

#include "core_test.hpp"

namespace dragon {
namespace {

TEST(objects_work_after_processes_are_killed_at_random) {
    Arena& a = new_arena();
    auto c = new_channel(20);
    auto lock = new_lock();
    uint64_t before = block_count();
    unsigned seed = 12345;
    for (int round = 0; round < 60; ++round) {
        std::vector<pid_t> children;
        for (int i = 0; i < 3; ++i)
            children.push_back(fork_child([&] {
                OwnerId self = arena().self();
                for (uint64_t n = 1;; ++n) {
                    if (i == 0) put(*c, n, n % 3 ? 64 : 2000, kForever);
                    if (i == 1) get(*c, n, kForever);
                    if (i == 2) {
                        lock->acquire(self, 1, kForever);
                        arena().free(arena().allocate(n % 3000));
                        lock->release(self, 1);
                    }
                }
            }));
        usleep(rand_r(&seed) % 4000);
        for (pid_t child : children) kill(child, SIGKILL);
        for (pid_t child : children) wait_status(child);
        Status status = lock->acquire(a.self(), 1, long_deadline());
        CHECK(status == Status::Ok || status == Status::Recovered);
        lock->release(a.self(), 1);
        a.reap_dead();
        uint64_t number;
        while (get(*c, number) == Status::Ok);
        CHECK(put(*c, 1, 64, long_deadline()) == Status::Ok && get_or_fail(*c) == 1);
        CHECK(block_count() <= before + 257);  // the channel keeps up to 256 spare blocks
        check_free_lists();
    }
    c.release();
    CHECK(block_count() == before - 1);
}

}  // namespace
}  // namespace dragon
