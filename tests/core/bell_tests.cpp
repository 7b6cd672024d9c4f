// Tests of bells: the FIFO files that are readable while a channel is.
#include <atomic>
#include <cstdlib>
#include <thread>

#include "core_test.hpp"

namespace dragon {
namespace {

TEST(bell_is_readable_while_channel_is_readable) {
    Arena& a = new_arena();
    char folder[] = "/tmp/dragon-core-tests-XXXXXX";
    CHECK(mkdtemp(folder));
    set_bell_folder(folder);
    auto c = new_channel(0, true, Role::Reader);
    a.attach(c.handle, Kind::Channel, Role::Writer);
    int fd = open_bell(c.handle);
    c->enable_bell(a, Channel::kOwn);
    auto rung = [&] {
        char byte;
        ssize_t n = read(fd, &byte, 1);
        if (n == 1) CHECK(write(fd, &byte, 1) == 1);
        return n == 1;
    };
    CHECK(!rung());
    CHECK(put(*c, 1) == Status::Ok && put(*c, 2) == Status::Ok);
    CHECK(rung());
    CHECK(get_or_fail(*c) == 1);
    CHECK(rung());
    CHECK(get_or_fail(*c) == 2);
    CHECK(!rung());
    pid_t child = run_and_kill_child([&] { CHECK(put(*c, 3) == Status::Ok); });
    CHECK(rung() && arena().reap(child));
    CHECK(get_or_fail(*c) == 3);
    a.release(c.handle, Role::Writer);
    CHECK(rung());
    uint64_t n;
    CHECK(get(*c, n) == Status::EndOfFile);
    CHECK(rung());
    c.release();
    CHECK(rmdir(folder) == 0);  // release() has removed the file of the bell
}

TEST(forked_child_can_open_bells_while_parent_threads_do) {
    new_arena();
    char folder[] = "/tmp/dragon-core-tests-XXXXXX";
    CHECK(mkdtemp(folder));
    set_bell_folder(folder);
    auto ours = new_channel(), theirs = new_channel();
    std::atomic<bool> stop{false};
    std::thread other([&] {
        while (!stop) {
            open_bell(theirs.handle);
            close_bell(theirs.handle);
        }
    });
    for (int i = 0; i < 20; ++i) {
        pid_t child = fork_child([&] {
            alarm(20);
            close_bell(ours.handle);
            CHECK(open_bell(ours.handle) >= 0);
        });
        join_child(child);
    }
    stop = true;
    other.join();
    for (auto* c : {&ours, &theirs}) {
        open_bell(c->handle);
        (*c)->enable_bell(arena(), Channel::kOwn);
        c->release();
    }
    CHECK(rmdir(folder) == 0);
}

TEST(agent_bell_rings_once_until_channel_is_drained) {
    Arena& a = new_arena();
    char folder[] = "/tmp/dragon-core-tests-XXXXXX";
    CHECK(mkdtemp(folder));
    set_bell_folder(folder);
    auto c = new_channel();
    int fd = open_agent_bell();
    auto rung = [&] {
        Offset offsets[8];
        ssize_t n = read(fd, offsets, sizeof offsets);
        if (n <= 0) return 0;
        CHECK(offsets[0] == c.handle.offset);
        return static_cast<int>(n / sizeof offsets[0]);
    };
    CHECK(put(*c, 1) == Status::Ok);
    c->enable_bell(a, Channel::kAgents);
    CHECK(rung() == 1);
    CHECK(put(*c, 2) == Status::Ok);
    CHECK(rung() == 0);
    CHECK(get_or_fail(*c) == 1 && get_or_fail(*c) == 2);
    uint64_t n;
    CHECK(get(*c, n) == Status::Timeout);
    CHECK(rung() == 0);
    c->heard();
    pid_t child = run_and_kill_child([&] { CHECK(put(*c, 3) == Status::Ok); });
    CHECK(rung() == 1 && arena().reap(child));
    CHECK(get_or_fail(*c) == 3);
    c->heard();
    c->destroy(a);
    CHECK(rung() == 1);
    c.release();
    CHECK(unlink((std::string(folder) + "/bell-agent").c_str()) == 0 && rmdir(folder) == 0);
}

}  // namespace
}  // namespace dragon
