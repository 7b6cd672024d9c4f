// Processes are stopped after every change that an operation makes, while other processes work.
#include "kill_test.hpp"

namespace dragon {
namespace {

// Checks while the child is stopped that operations on other objects succeed, and that those on the same
// channel end by their deadlines.
void stop_after_every_change(const std::string& name, Operation o) {
    Arena& a = arena();
    static Attached<Channel> other;
    other = new_channel();
    o.while_stopped = [&] {
        for (size_t size : {64, 232, 1000, 8000, 1 << 20}) {
            CHECK(put(*other, size, size, long_deadline()) == Status::Ok);
            CHECK(get_or_fail(*other) == size);
        }
        auto own = new_channel(0, true, Role::Reader);
        a.send(own.handle, Role::Writer);
        CHECK(try_attach(own.handle, Kind::Channel, Role::Writer));
        a.release(own.handle, Role::Writer);
        own.release();
        auto condition = new_condition();
        Offset waiter = condition->enter(a);
        CHECK(condition->notify(a, 1) == 1 && condition->leave(a, waiter));
        condition.release();
        a.trim(kMiB);
        pid_t dead = run_and_kill_child([&] {
            CHECK(try_attach(other.handle));
            put(*other, 1, 1000);
            arena().allocate(5000);
        });
        CHECK(a.reap(dead));
        CHECK(get_or_fail(*other) == 1);
        Nanoseconds start = now();
        uint64_t number;
        for (Nanoseconds deadline : {Nanoseconds{0}, short_deadline()}) {
            Status got = get(*tested_channel, number, deadline),
                   put_there = put(*tested_channel, 1, 64, deadline);
            for (Status status : {got, put_there})
                CHECK(status == Status::Ok || status == Status::Timeout || status == Status::Busy ||
                      status == Status::Destroyed);
        }
        CHECK(now() - start < 20 * kSecond);
    };
    o.before_reap = [](bool) {};
    o.check = [](bool) { tested_channel.release(); };
    kill_after_every_change(name, o);
    other.release();
}

LONG_TEST(stopped_process_does_not_block_others) {
    new_arena();
    Operation o;
    o.prepare = [] {
        tested_channel = new_channel(8);
        for (uint64_t i = 1; i <= 2; ++i) CHECK(put(*tested_channel, i, i == 2 ? 1000 : 64) == Status::Ok);
    };
    for (size_t size : {64, 1000, 8000}) {
        o.run = [=] { put(*tested_channel, 9, size); };
        stop_after_every_change("stopped in put", o);
    }
    o.run = [] {
        uint64_t number;
        get(*tested_channel, number);
        get(*tested_channel, number);
    };
    stop_after_every_change("stopped in get", o);
    static Offset block;
    for (size_t size : {size_t{64}, size_t{1000}, kMiB}) {
        o.prepare_child = [] {};
        o.run = [=] { arena().allocate(size); };
        stop_after_every_change("stopped in allocate", o);
        o.prepare_child = [=] { block = arena().allocate(size); };
        o.run = [] { arena().free(block); };
        stop_after_every_change("stopped in free", o);
    }
    o.prepare_child = [] {};
    o.run = [] { new_channel().release(); };
    stop_after_every_change("stopped in create and release", o);
    o.run = [] { arena().send(tested_channel.handle, Role::Plain); };
    stop_after_every_change("stopped in send", o);
    o.run = [] { tested_channel->destroy(arena()); };
    stop_after_every_change("stopped in destroy", o);
}

}  // namespace
}  // namespace dragon
