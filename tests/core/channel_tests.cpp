// Tests of channels: order, capacity, deadlines, several readers and writers, destruction, tasks.
#include <atomic>
#include <thread>

#include "core_test.hpp"

namespace dragon {
namespace {

TEST(messages_of_all_sizes_arrive_in_order) {
    new_arena();
    auto c = new_channel();
    size_t sizes[] = {8, 224, 232, 240, 4096, 100'000};
    for (uint64_t round = 0; round < 3; ++round) {
        for (uint64_t i = 1; i <= 1000; ++i) CHECK(put(*c, i, sizes[i % 6]) == Status::Ok);
        CHECK(c->size() == 1000);
        for (uint64_t i = 1; i <= 1000; ++i) CHECK(get_or_fail(*c) == i);
        CHECK(c->size() == 0);
    }
    c.release();
    CHECK(block_count() == 1);  // the table of this process's attachments
}

TEST(get_stores_the_ticket_of_the_message) {
    Arena& a = new_arena();
    auto c = new_channel();
    uint64_t number = 1;
    std::atomic<uint64_t> mine{0};
    CHECK(c->put_small(a, {1, sizeof number, 7}, &number, 0) == Status::Ok);
    CHECK(c->put_block(a, {2, sizeof number, 8}, a.allocate(kDataStart + sizeof number), 0) == Status::Ok);
    CHECK(put(*c, 3) == Status::Ok);
    for (uint64_t ticket : {7, 8, 0}) {
        auto message = std::make_unique<Message>();
        CHECK(c->get(a, *message, 0, &mine) == Status::Ok);
        CHECK(mine == ticket && message->label.ticket == ticket);
        if (message->block) a.free(message->block);
    }
    mine = 9;
    Message message;
    CHECK(c->get(a, message, 0, &mine) == Status::Timeout && mine == 9);
}

TEST(put_to_full_channel_times_out) {
    new_arena();
    auto c = new_channel(2);
    CHECK(put(*c, 1) == Status::Ok && put(*c, 2, 1000) == Status::Ok);
    CHECK(c->full());
    CHECK(put(*c, 3) == Status::Timeout);
    CHECK(put(*c, 3, 1000) == Status::Timeout);
    CHECK(put(*c, 3, 64, short_deadline()) == Status::Timeout);
    std::thread reader([&] { CHECK(get_or_fail(*c) == 1); });
    CHECK(put(*c, 3, 64, long_deadline()) == Status::Ok);
    reader.join();
    CHECK(get_or_fail(*c) == 2);
    CHECK(get_or_fail(*c) == 3);
}

TEST(message_put_back_is_received_next) {
    new_arena();
    for (size_t size : {64, 1000})
        for (uint64_t others : {0, 1, 2}) {
            auto c = new_channel(others + 1);
            for (uint64_t i = 0; i <= others; ++i) CHECK(put(*c, i, size) == Status::Ok);
            CHECK(get_or_fail(*c) == 0);
            CHECK(put(*c, others + 1, size) == Status::Ok);
            CHECK(c->full());
            CHECK(put(*c, 0, size, 0, Side::Front) == Status::Ok);
            for (uint64_t i = 0; i <= others + 1; ++i) {
                CHECK(c->join(short_deadline()) == Status::Timeout);
                CHECK(get_or_fail(*c) == i);
                CHECK(c->task_done());
            }
            CHECK(c->join(long_deadline()) == Status::Ok);
            CHECK(!c->task_done());
            CHECK(put(*c, 7, size) == Status::Ok && get_or_fail(*c) == 7);
            c.release();
        }
}

TEST(get_from_empty_channel_times_out) {
    new_arena();
    auto c = new_channel();
    uint64_t number;
    CHECK(get(*c, number) == Status::Timeout);
    Nanoseconds start = now();
    CHECK(get(*c, number, short_deadline()) == Status::Timeout);
    CHECK(now() - start >= kSecond / 100);
    CHECK(c->wait_readable(short_deadline()) == Status::Timeout);
    CHECK(put(*c, 1) == Status::Ok);
    CHECK(c->wait_readable(long_deadline()) == Status::Ok);
}

TEST(each_message_is_received_once_and_in_order) {
    new_arena();
    auto c = new_channel(50);
    constexpr uint64_t kEach = 3000;
    std::vector<std::thread> threads;
    std::atomic<uint64_t> sum{0}, count{0};
    for (uint64_t t = 0; t < 3; ++t)
        threads.emplace_back([&, t] {
            for (uint64_t i = 0; i < kEach; ++i)
                CHECK(put(*c, i * 3 + t, i % 5 ? 64 : 1000, long_deadline()) == Status::Ok);
        });
    for (int t = 0; t < 3; ++t)
        threads.emplace_back([&] {
            uint64_t number, last[3] = {0, 0, 0};
            while (count.fetch_add(1) < 3 * kEach) {
                CHECK(get(*c, number, long_deadline()) == Status::Ok);
                CHECK(number / 3 + 1 > last[number % 3]);  // in the order of each writer
                last[number % 3] = number / 3 + 1;
                sum += number;
            }
        });
    for (auto& t : threads) t.join();
    CHECK(sum == (3 * kEach) * (3 * kEach - 1) / 2);
    c.release();
    CHECK(block_count() == 1);
}

TEST(processes_exchange_messages) {
    new_arena();
    auto there = new_channel(4), back = new_channel(4);
    pid_t child = fork_child([&] {
        for (int i = 0; i < 2000; ++i)
            CHECK(put(*back, get_or_fail(*there) + 1, i % 2 ? 64 : 504, long_deadline()) == Status::Ok);
    });
    for (uint64_t i = 1; i <= 2000; ++i) {
        CHECK(put(*there, i, i % 3 ? 64 : 504, long_deadline()) == Status::Ok);
        CHECK(get_or_fail(*back) == i + 1);
    }
    join_child(child);
    CHECK(arena().reap(child));
}

TEST(destroy_wakes_waiting_threads) {
    new_arena();
    auto empty = new_channel(), full = new_channel(1);
    CHECK(put(*full, 1) == Status::Ok);
    CHECK(put(*empty, 1) == Status::Ok && get_or_fail(*empty) == 1);
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
        uint64_t n;
        CHECK(get(*empty, n, long_deadline()) == Status::Destroyed);
    });
    threads.emplace_back([&] { CHECK(empty->wait_readable(long_deadline()) == Status::Destroyed); });
    threads.emplace_back([&] { CHECK(empty->join(long_deadline()) == Status::Destroyed); });
    threads.emplace_back([&] { CHECK(put(*full, 2, 64, long_deadline()) == Status::Destroyed); });
    usleep(20'000);
    empty->destroy(arena());
    full->destroy(arena());
    for (auto& t : threads) t.join();
    CHECK(put(*empty, 1) == Status::Destroyed);
    uint64_t n;
    CHECK(get(*full, n) == Status::Destroyed);
    empty.release();
    full.release();
    CHECK(block_count() == 1);
}

TEST(join_waits_for_all_tasks) {
    new_arena();
    auto c = new_channel();
    CHECK(c->join(long_deadline()) == Status::Ok);
    CHECK(!c->task_done());
    for (uint64_t i = 0; i < 500; ++i) CHECK(put(*c, i) == Status::Ok);
    CHECK(c->join(short_deadline()) == Status::Timeout);
    std::atomic<int> done{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
        threads.emplace_back([&] {
            uint64_t n;
            while (get(*c, n) == Status::Ok) {
                done.fetch_add(1);
                CHECK(c->task_done());
            }
        });
    CHECK(c->join(long_deadline()) == Status::Ok);
    CHECK(done == 500);
    for (auto& t : threads) t.join();
    CHECK(!c->task_done());
    CHECK(c->join(0) == Status::Ok);
}

TEST(pipe_reports_end_after_last_writer_closes) {
    Arena& a = new_arena();
    auto reader = new_channel(0, true, Role::Reader);
    a.attach(reader.handle, Kind::Channel, Role::Writer);
    Attached<Channel> writer{reader.handle, Role::Writer};
    CHECK(put(*writer, 1) == Status::Ok);
    std::thread thread([&] {
        CHECK(get_or_fail(*reader) == 1);
        uint64_t n;
        CHECK(get(*reader, n, long_deadline()) == Status::EndOfFile);
    });
    usleep(20'000);
    writer.release();
    thread.join();
    CHECK(reader->wait_readable(0) == Status::Ok);
    reader.release();
    CHECK(block_count() == 1);
}

TEST(put_to_pipe_fails_after_last_reader_closes) {
    Arena& a = new_arena();
    auto reader = new_channel(1, true, Role::Reader);
    a.attach(reader.handle, Kind::Channel, Role::Writer);
    CHECK(put(*reader, 1) == Status::Ok);
    std::thread thread([&] { CHECK(put(*reader, 2, 64, long_deadline()) == Status::Broken); });
    usleep(20'000);
    reader.release();
    thread.join();
}

TEST(pipe_end_in_a_message_counts_as_open) {
    Arena& a = new_arena();
    auto reader = new_channel(0, true, Role::Reader);
    a.attach(reader.handle, Kind::Channel, Role::Writer);
    std::atomic<bool> stop{false};
    std::thread watch([&] {
        while (!stop) CHECK(!reader->end_is_gone(Role::Writer));
    });
    for (int i = 0; i < 20'000; ++i) {
        a.send(reader.handle, Role::Writer);
        a.release(reader.handle, Role::Writer);
        a.attach(reader.handle, Kind::Channel, Role::Writer);
    }
    stop = true;
    watch.join();
    a.release(reader.handle, Role::Writer);
    CHECK(reader->end_is_gone(Role::Writer));
}

}  // namespace
}  // namespace dragon
