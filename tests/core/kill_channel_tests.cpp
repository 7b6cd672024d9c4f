// Processes are killed after every change that an operation of a channel makes.
#include "kill_test.hpp"

namespace dragon {
namespace {

// Whether the queue is used between the kill and reap(), or only after it.
void kill_during_queue_operations(bool use_before_reap) {
    new_arena();
    for (size_t size : {64, 1000})
        for (int before : {0, 1, 2})
            for (bool spares : {false, true}) {
                Operation o;
                uint64_t queued = static_cast<uint64_t>(before);
                o.prepare = [=] {
                    tested_channel = new_channel(8);
                    for (uint64_t i = 1; i <= 2 && spares; ++i) CHECK(put(*tested_channel, i) == Status::Ok);
                    for (int i = 0; i < 2 && spares; ++i) {
                        get_or_fail(*tested_channel);
                        CHECK(tested_channel->task_done());
                    }
                    for (uint64_t i = 1; i <= queued; ++i) CHECK(put(*tested_channel, i, size) == Status::Ok);
                };
                if (use_before_reap)
                    o.before_reap = [=](bool) {
                        CHECK(put(*tested_channel, 77, 64, long_deadline()) ==
                              Status::Ok);  // repairs the channel
                        uint64_t number = 0, seen = 0;
                        for (; number != 77; ++seen)
                            CHECK(get(*tested_channel, number, long_deadline()) == Status::Ok);
                        for (uint64_t i = 0; i < seen; ++i) CHECK(tested_channel->task_done());
                    };
                auto left = [=](uint64_t n) { return use_before_reap ? 0 : n; };
                std::string description = std::to_string(size) + " bytes, " + std::to_string(before) +
                                          " in the queue" + (spares ? ", spare blocks" : "");
                o.run = [=] { put(*tested_channel, 9, size); };
                o.check = [=](bool done) { check_tested_channel(left(queued + done), left(queued + 1)); };
                kill_after_every_change("put of " + description, o);
                if (before == 0) continue;
                o.run = [=] { put(*tested_channel, 1, size, 0, Side::Front); };
                auto prepare = o.prepare;
                o.prepare = [=] {
                    prepare();
                    CHECK(get_or_fail(*tested_channel) == 1);
                };
                o.check = [=](bool done) { check_tested_channel(left(queued - 1 + done), left(queued)); };
                kill_after_every_change("putting back of " + description, o);
                o.prepare = prepare;
                o.run = [=] {
                    uint64_t number;
                    get(*tested_channel, number);
                };
                o.check = [=](bool done) { check_tested_channel(left(queued - 1), left(queued - done)); };
                kill_after_every_change("get of " + description, o);
            }
}

TEST(queue_is_repaired_by_reap) { kill_during_queue_operations(false); }

TEST(queue_is_repaired_by_next_operation) { kill_during_queue_operations(true); }

TEST(kill_during_get_with_all_spare_blocks) {
    new_arena();
    Operation o;
    o.prepare = [] {
        tested_channel = new_channel();
        for (uint64_t i = 1; i <= 258; ++i) put(*tested_channel, i);
        for (uint64_t i = 1; i <= 256; ++i) CHECK(get_or_fail(*tested_channel) == i);
        for (uint64_t i = 1; i <= 256; ++i) CHECK(tested_channel->task_done());
    };
    o.run = [] {
        uint64_t number;
        get(*tested_channel, number);
    };
    o.check = [](bool done) { check_tested_channel(1, done ? 1 : 2); };
    kill_after_every_change("get with all spare blocks", o);
}

TEST(kill_during_task_done_and_destroy) {
    new_arena();
    Operation o;
    o.prepare = [] {
        tested_channel = new_channel();
        for (uint64_t i = 1; i <= 3; ++i) put(*tested_channel, i, i == 2 ? 1000 : 64);
        CHECK(get_or_fail(*tested_channel) == 1);
    };
    o.run = [] { tested_channel->task_done(); };
    o.check = [](bool done) {
        get_or_fail(*tested_channel);
        get_or_fail(*tested_channel);
        while (tested_channel->task_done());
        CHECK(tested_channel->join(0) == Status::Ok || done);
        CHECK(tested_channel->join(0) == Status::Ok);
        tested_channel.release();
    };
    kill_after_every_change("task_done", o);
    o.run = [] { tested_channel->destroy(arena()); };
    o.check = [](bool done) {
        CHECK(!done || put(*tested_channel, 1) == Status::Destroyed);
        tested_channel->destroy(arena());
        CHECK(tested_channel->size() == 0);
        tested_channel.release();
    };
    kill_after_every_change("destroy", o);
}

}  // namespace
}  // namespace dragon
