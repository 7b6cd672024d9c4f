// Tests of the core without Python. Each runs in a process of its own, with an arena of its own.
//
// What a killed process leaves is tested exhaustively: a child does one operation under ptrace, near its
// writes in single steps, and is killed right after its first change to the arena, then in another round
// after its second, and so on to the last.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../../src/core/channel.hpp"
#include "../../src/core/fork_server.hpp"
#include "../../src/core/layout.hpp"
#include "../../src/core/packets.hpp"
#include "../../src/core/sync.hpp"

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            fflush(stderr);                                                         \
            _exit(1);                                                               \
        }                                                                           \
    } while (false)

namespace dragon {
namespace {

constexpr int kSkipped = 77;
constexpr unsigned kPatience = 120;  // seconds, after which a test hangs
constexpr Nanoseconds kSecond = 1'000'000'000;

Nanoseconds in(double seconds) { return deadline_after(seconds); }
Nanoseconds soon() { return in(20); }       // for what must happen: generous
Nanoseconds shortly() { return in(0.02); }  // for what must not

Arena& new_arena(uint64_t limit = 256 * kMiB) {
    auto* a = new Arena(limit);
    set_arena(a);
    return *a;
}

template <class T>
struct Made {
    Handle handle;
    Role role;
    T* operator->() const { return arena().at<T>(handle.offset); }
    T& operator*() const { return *arena().at<T>(handle.offset); }
    void release() const { arena().release(handle, role); }
};

Made<Channel> new_channel(uint64_t capacity = 0, bool pipe = false, Role role = Role::Plain) {
    return {arena().create<Channel>(Kind::Channel, role, sizeof(Channel), capacity, pipe), role};
}
Made<Lock> new_lock(bool recursive = false) {
    return {arena().create<Lock>(Kind::Lock, Role::Plain, sizeof(Lock), recursive), Role::Plain};
}
Made<Condition> new_condition() {
    return {arena().create<Condition>(Kind::Condition, Role::Plain, sizeof(Condition)), Role::Plain};
}
Made<Semaphore> new_semaphore(uint32_t value, uint32_t bound) {
    return {arena().create<Semaphore>(Kind::Semaphore, Role::Plain, sizeof(Semaphore), value, bound),
            Role::Plain};
}
Made<Event> new_event() {
    return {arena().create<Event>(Kind::Event, Role::Plain, sizeof(Event)), Role::Plain};
}
Made<Words> new_words(uint32_t count) {
    return {arena().create<Words>(Kind::Words, Role::Plain, Words::bytes(count), count), Role::Plain};
}

// A message of one number repeated, so that a torn one shows.
Status put(Channel& c, uint64_t number, size_t size = 64, Nanoseconds deadline = 0, Side side = Side::Back) {
    CHECK(size % 8 == 0);
    std::vector<uint64_t> words(size / 8, number);
    if (size <= kSmall) return c.put_small(arena(), {1, size}, words.data(), deadline, side);
    Offset block = arena().allocate(kDataStart + size);
    memcpy(arena().at<char>(block) + kDataStart, words.data(), size);
    Status status = c.put_block(arena(), {2, size}, block, deadline, side);
    if (status != Status::Ok) arena().free(block);
    return status;
}

Status get(Channel& c, uint64_t& number, Nanoseconds deadline = 0) {
    auto message = std::make_unique<Message>();
    Status status = c.get(arena(), *message, deadline);
    if (status != Status::Ok) return status;
    size_t size = message->label.size;
    const char* data = message->block ? arena().at<char>(message->block) + kDataStart : message->data;
    CHECK(message->label.kind == (message->block ? 2u : 1u));
    std::vector<uint64_t> words(size / 8);
    memcpy(words.data(), data, size);
    number = words[0];
    for (uint64_t word : words) CHECK(word == number);
    if (message->block) arena().free(message->block);
    return Status::Ok;
}

uint64_t take(Channel& c) {
    uint64_t number = 0;
    CHECK(get(c, number, soon()) == Status::Ok);
    return number;
}

template <class F>
pid_t fork_child(F f) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        f();
        _exit(0);
    }
    return pid;
}

int status_of(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}
void join_child(pid_t pid) { CHECK(status_of(pid) == 0); }

// Ends a process as if by any other's kill, at a place of its own choosing.
void die() { kill(getpid(), SIGKILL); }
pid_t killed_child(const std::function<void()>& f) {
    pid_t pid = fork_child([&] {
        f();
        die();
    });
    CHECK(WIFSIGNALED(status_of(pid)));
    return pid;
}

uint64_t blocks() { return arena().usage().blocks; }

// Every free block is handed out once.
void check_free_lists() {
    for (size_t size : {size_t{64}, size_t{256}, size_t{512}, size_t{1024}, size_t{8192}}) {
        std::set<Offset> seen;
        for (int i = 0; i < 24; ++i) CHECK(seen.insert(arena().allocate(size)).second);
        // The first ones come first again, where Watch looks.
        for (auto block = seen.rbegin(); block != seen.rend(); ++block) arena().free(*block);
    }
}

// ---- allocator

void size_classes_hold_what_they_promise() {
    size_t last = 0;
    for (size_t c = 0; c < kClasses; ++c) {
        CHECK(Arena::class_size(c) > last);
        CHECK(Arena::class_of_size(Arena::class_size(c)) == c);
        CHECK(Arena::class_of_size(last + 1) == c);
        last = Arena::class_size(c);
    }
    CHECK(Arena::class_of_size(0) == 0);
}

void freed_blocks_are_used_again() {
    Arena& a = new_arena();
    for (size_t size : {size_t{1}, size_t{4096}, size_t{5000}, 3 * kMiB}) {
        Offset block = a.allocate(size);
        CHECK(a.capacity(block) >= size);
        memset(a.at<char>(block), 1, size);
        uint64_t committed = a.usage().committed;
        uint32_t generation = a.meta(block).generation();
        a.free(block);
        CHECK(a.has_warm(size));
        CHECK(a.allocate(size) == block);
        CHECK(a.meta(block).generation() != generation);
        CHECK(a.usage().committed == committed);
        a.free(block);
    }
    CHECK(a.usage().blocks == 0);
    CHECK(a.usage().in_use == 0);
}

void limit_is_an_error_that_names_the_numbers() {
    Arena& a = new_arena(64 * kMiB);
    std::vector<Offset> held;
    std::string text;
    try {
        for (;;) held.push_back(a.allocate(kMiB));
    } catch (const OutOfMemory& e) {
        text = e.what();
    }
    CHECK(held.size() >= 60 && held.size() < 64);
    CHECK(text.find(std::to_string(kMiB)) != std::string::npos);
    CHECK(text.find(std::to_string(64 * kMiB)) != std::string::npos);
    CHECK(text.find(std::to_string(a.usage().committed)) != std::string::npos);
    CHECK(text.find("DRAGON_ARENA_SIZE") != std::string::npos);
    CHECK(a.usage().committed <= 64 * kMiB);
    try {
        a.allocate(100 * kMiB);
        CHECK(false);
    } catch (const OutOfMemory& e) {
        CHECK(std::string(e.what()).find(std::to_string(100 * kMiB)) != std::string::npos);
    }
    for (Offset block : held) a.free(block);
    a.free(a.allocate(20 * kMiB));  // the pages of the free small ones make room
}

void small_blocks_can_use_the_memory_to_the_limit() {
    Arena& a = new_arena(3 * kMiB);
    uint64_t count = 0;
    try {
        for (;; ++count) a.allocate(4096);
    } catch (const OutOfMemory&) {
    }
    CHECK(a.usage().limit - a.usage().committed < 3 * kPage);
    CHECK(count * 4096 > kMiB + kMiB / 2);
}

void trim_gives_pages_back_and_cold_blocks_serve_again() {
    Arena& a = new_arena();
    Offset first = a.allocate(4 * kMiB), second = a.allocate(4 * kMiB);
    memset(a.at<char>(first), 1, 4 * kMiB);
    uint64_t committed = a.usage().committed;
    a.free(first);
    CHECK(a.trim() == 4 * kMiB);
    CHECK(a.trim() == 0);
    CHECK(a.usage().committed == committed - 4 * kMiB);
    CHECK(!a.has_warm(4 * kMiB));
    CHECK(a.allocate(4 * kMiB) == first);
    CHECK(a.at<char>(first)[12345] == 0);
    CHECK(a.usage().committed == committed);
    a.free(first);
    a.free(second);
    CHECK(a.usage().blocks == 0);
}

void many_freed_large_blocks_give_their_pages_back() {
    Arena& a = new_arena(1024 * kMiB);
    std::vector<Offset> held;
    for (int i = 0; i < 20; ++i) held.push_back(a.allocate(16 * kMiB));
    for (Offset block : held) a.free(block);
    CHECK(a.usage().committed < 260 * kMiB);
    CHECK(a.usage().blocks == 0);
    std::set<Offset> again;
    for (int i = 0; i < 20; ++i) CHECK(again.insert(a.allocate(16 * kMiB)).second);
    CHECK(a.usage().in_use == 320 * kMiB);
}

void threads_never_get_the_same_block() {
    Arena& a = new_arena();
    std::vector<std::thread> threads;
    for (uint64_t t = 1; t <= 4; ++t)
        threads.emplace_back([&a, t] {
            std::vector<Offset> held;
            for (uint64_t i = 0; i < 4000; ++i) {
                Offset block = a.allocate(64 << i % 3);
                *a.at<uint64_t>(block) = t;
                held.push_back(block);
                if (i % 3) continue;
                CHECK(*a.at<uint64_t>(held.front()) == t);
                a.free(held.front());
                held.erase(held.begin());
            }
            for (Offset block : held) {
                CHECK(*a.at<uint64_t>(block) == t);
                a.free(block);
            }
        });
    for (auto& t : threads) t.join();
    CHECK(a.usage().blocks == 0);
}

// ---- channels

void messages_come_in_order_whatever_their_size() {
    new_arena();
    auto c = new_channel();
    size_t sizes[] = {8, 224, 232, 240, 4096, 100'000};
    for (uint64_t round = 0; round < 3; ++round) {
        for (uint64_t i = 1; i <= 1000; ++i) CHECK(put(*c, i, sizes[i % 6]) == Status::Ok);
        CHECK(c->size() == 1000);
        for (uint64_t i = 1; i <= 1000; ++i) CHECK(take(*c) == i);
        CHECK(c->size() == 0);
    }
    c.release();
    CHECK(blocks() == 1);  // the table of what this process is attached to
}

void who_takes_a_task_has_its_ticket_from_then_on() {
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

Made<Channel> new_queue(const Origin& origin) {
    auto* a = &arena();
    return {a->create<Channel>(Kind::Channel, Role::Plain, sizeof(Channel), 0, false, origin), Role::Plain};
}

void users_queues_are_found_and_counted() {
    Arena& a = new_arena();
    std::vector<Made<Channel>> own, users;
    for (uint32_t i = 1; i <= 100; ++i) {
        own.push_back(new_channel());
        users.push_back(new_queue({a.next_queue(), 7, {}, {}}));
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
    CHECK(put(*users[0], 1, 1000) == Status::Ok && take(*users[0]) == 1);
    users[1]->destroy(a);
    users[2].release();
    auto states = a.queues(found);
    CHECK(states.size() == 98);
    CHECK(states[0].number == 1 && states[0].maker == 7 && !states[0].pool);
    CHECK(states[0].size == 1 && states[0].taken == 1 && states[0].bytes == kDataStart + 1000);
    CHECK(states[1].number == 4 && states[1].size == 1 && states[1].taken == 0 &&
          states[1].bytes == kSmallBlock);
}

void who_waits_at_a_queue_is_counted_until_it_is_killed() {
    Arena& a = new_arena();
    auto c = new_queue({a.next_queue(), 7, {}, {}});
    pid_t child = fork_child([&] {
        a.begin_wait(c.handle.offset, Purpose::Get, 1, now());
        CHECK(take(*c) == 0);
    });
    while (a.queues({c.handle.offset})[0].getting == 0) sched_yield();
    kill(child, SIGKILL);
    status_of(child);
    a.reap(child);
    CHECK(a.queues({c.handle.offset})[0].getting == 0);
}

void looking_at_queues_disturbs_nobody_who_makes_them() {
    Arena& a = new_arena();
    auto words = new_words(1);
    pid_t child = fork_child([&] {
        for (;;) {
            auto tasks = new_queue({a.next_queue(), 7, new_channel().handle, new_words(3).handle});
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
    status_of(child);
    a.reap(child);
    uint64_t next;
    CHECK(a.queues(a.find_queues(0, UINT32_MAX, next)).empty());
}

void a_full_channel_takes_no_more() {
    new_arena();
    auto c = new_channel(2);
    CHECK(put(*c, 1) == Status::Ok && put(*c, 2, 1000) == Status::Ok);
    CHECK(c->full());
    CHECK(put(*c, 3) == Status::Timeout);
    CHECK(put(*c, 3, 1000) == Status::Timeout);
    CHECK(put(*c, 3, 64, shortly()) == Status::Timeout);
    std::thread reader([&] { CHECK(take(*c) == 1); });
    CHECK(put(*c, 3, 64, soon()) == Status::Ok);
    reader.join();
    CHECK(take(*c) == 2);
    CHECK(take(*c) == 3);
}

void a_message_that_is_put_back_is_the_next_one() {
    new_arena();
    for (size_t size : {64, 1000})
        for (uint64_t others : {0, 1, 2}) {
            auto c = new_channel(others + 1);
            for (uint64_t i = 0; i <= others; ++i) CHECK(put(*c, i, size) == Status::Ok);
            CHECK(take(*c) == 0);
            CHECK(put(*c, others + 1, size) == Status::Ok);
            CHECK(c->full());
            CHECK(put(*c, 0, size, 0, Side::Front) == Status::Ok);
            for (uint64_t i = 0; i <= others + 1; ++i) {
                CHECK(c->join(shortly()) == Status::Timeout);
                CHECK(take(*c) == i);
                CHECK(c->task_done());
            }
            CHECK(c->join(soon()) == Status::Ok);
            CHECK(!c->task_done());
            CHECK(put(*c, 7, size) == Status::Ok && take(*c) == 7);
            c.release();
        }
}

void an_empty_channel_times_out() {
    new_arena();
    auto c = new_channel();
    uint64_t number;
    CHECK(get(*c, number) == Status::Timeout);
    Nanoseconds start = now();
    CHECK(get(*c, number, shortly()) == Status::Timeout);
    CHECK(now() - start >= kSecond / 100);
    CHECK(c->wait_readable(shortly()) == Status::Timeout);
    CHECK(put(*c, 1) == Status::Ok);
    CHECK(c->wait_readable(soon()) == Status::Ok);
}

void every_message_reaches_one_reader() {
    new_arena();
    auto c = new_channel(50);
    constexpr uint64_t kEach = 3000;
    std::vector<std::thread> threads;
    std::atomic<uint64_t> sum{0}, count{0};
    for (uint64_t t = 0; t < 3; ++t)
        threads.emplace_back([&, t] {
            for (uint64_t i = 0; i < kEach; ++i)
                CHECK(put(*c, i * 3 + t, i % 5 ? 64 : 1000, soon()) == Status::Ok);
        });
    for (int t = 0; t < 3; ++t)
        threads.emplace_back([&] {
            uint64_t number, last[3] = {0, 0, 0};
            while (count.fetch_add(1) < 3 * kEach) {
                CHECK(get(*c, number, soon()) == Status::Ok);
                CHECK(number / 3 + 1 > last[number % 3]);  // each writer's are in order
                last[number % 3] = number / 3 + 1;
                sum += number;
            }
        });
    for (auto& t : threads) t.join();
    CHECK(sum == (3 * kEach) * (3 * kEach - 1) / 2);
    c.release();
    CHECK(blocks() == 1);
}

void processes_exchange_messages() {
    new_arena();
    auto there = new_channel(4), back = new_channel(4);
    pid_t child = fork_child([&] {
        for (int i = 0; i < 2000; ++i)
            CHECK(put(*back, take(*there) + 1, i % 2 ? 64 : 504, soon()) == Status::Ok);
    });
    for (uint64_t i = 1; i <= 2000; ++i) {
        CHECK(put(*there, i, i % 3 ? 64 : 504, soon()) == Status::Ok);
        CHECK(take(*back) == i + 1);
    }
    join_child(child);
    CHECK(arena().reap(child));
}

void destroy_wakes_who_waits() {
    new_arena();
    auto empty = new_channel(), full = new_channel(1);
    CHECK(put(*full, 1) == Status::Ok);
    CHECK(put(*empty, 1) == Status::Ok && take(*empty) == 1);
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
        uint64_t n;
        CHECK(get(*empty, n, soon()) == Status::Destroyed);
    });
    threads.emplace_back([&] { CHECK(empty->wait_readable(soon()) == Status::Destroyed); });
    threads.emplace_back([&] { CHECK(empty->join(soon()) == Status::Destroyed); });
    threads.emplace_back([&] { CHECK(put(*full, 2, 64, soon()) == Status::Destroyed); });
    usleep(20'000);
    empty->destroy(arena());
    full->destroy(arena());
    for (auto& t : threads) t.join();
    CHECK(put(*empty, 1) == Status::Destroyed);
    uint64_t n;
    CHECK(get(*full, n) == Status::Destroyed);
    empty.release();
    full.release();
    CHECK(blocks() == 1);
}

void a_pipe_ends_when_its_last_writer_goes() {
    Arena& a = new_arena();
    auto reader = new_channel(0, true, Role::Reader);
    a.attach(reader.handle, Kind::Channel, Role::Writer);
    Made<Channel> writer{reader.handle, Role::Writer};
    CHECK(put(*writer, 1) == Status::Ok);
    std::thread thread([&] {
        CHECK(take(*reader) == 1);
        uint64_t n;
        CHECK(get(*reader, n, soon()) == Status::EndOfFile);
    });
    usleep(20'000);
    writer.release();
    thread.join();
    CHECK(reader->wait_readable(0) == Status::Ok);
    reader.release();
    CHECK(blocks() == 1);
}

void a_pipe_breaks_when_its_last_reader_goes() {
    Arena& a = new_arena();
    auto reader = new_channel(1, true, Role::Reader);
    a.attach(reader.handle, Kind::Channel, Role::Writer);
    CHECK(put(*reader, 1) == Status::Ok);
    std::thread thread([&] { CHECK(put(*reader, 2, 64, soon()) == Status::Broken); });
    usleep(20'000);
    reader.release();
    thread.join();
}

void an_end_that_a_message_carries_is_not_gone() {
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

void the_bell_is_readable_while_the_channel_is() {
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
    CHECK(take(*c) == 1);
    CHECK(rung());
    CHECK(take(*c) == 2);
    CHECK(!rung());
    pid_t child = killed_child([&] { CHECK(put(*c, 3) == Status::Ok); });
    CHECK(rung() && arena().reap(child));
    CHECK(take(*c) == 3);
    a.release(c.handle, Role::Writer);
    CHECK(rung());
    uint64_t n;
    CHECK(get(*c, n) == Status::EndOfFile);
    CHECK(rung());
    c.release();
    CHECK(rmdir(folder) == 0);  // the bell's file is gone
}

void a_child_can_open_bells_whatever_threads_of_its_parent_did() {
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

void the_agent_hears_of_a_channel_once_each_time_there_is_something_again() {
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
    CHECK(take(*c) == 1 && take(*c) == 2);
    uint64_t n;
    CHECK(get(*c, n) == Status::Timeout);
    CHECK(rung() == 0);
    pid_t child = killed_child([&] { CHECK(put(*c, 3) == Status::Ok); });
    CHECK(rung() == 1 && arena().reap(child));
    CHECK(take(*c) == 3);
    c->destroy(a);
    CHECK(rung() == 1);
    c.release();
    CHECK(unlink((std::string(folder) + "/bell-agent").c_str()) == 0 && rmdir(folder) == 0);
}

void join_waits_for_every_task() {
    new_arena();
    auto c = new_channel();
    CHECK(c->join(soon()) == Status::Ok);
    CHECK(!c->task_done());
    for (uint64_t i = 0; i < 500; ++i) CHECK(put(*c, i) == Status::Ok);
    CHECK(c->join(shortly()) == Status::Timeout);
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
    CHECK(c->join(soon()) == Status::Ok);
    CHECK(done == 500);
    for (auto& t : threads) t.join();
    CHECK(!c->task_done());
    CHECK(c->join(0) == Status::Ok);
}

// ---- locks and the rest

void a_lock_admits_one_at_a_time() {
    Arena& a = new_arena();
    auto lock = new_lock();
    uint64_t counter = 0;
    std::vector<std::thread> threads;
    for (uint64_t t = 1; t <= 3; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 5000; ++i) {
                CHECK(lock->acquire(a.self(), t, soon()) == Status::Ok);
                ++counter;
                CHECK(lock->release(a.self(), t) == Lock::Release::Ok);
            }
        });
    for (auto& t : threads) t.join();
    CHECK(counter == 15'000);
    CHECK(lock->release(a.self(), 1) == Lock::Release::NotLocked);
    CHECK(lock->acquire(a.self(), 1, 0) == Status::Ok);
    CHECK(lock->acquire(a.self(), 1, 0) == Status::Timeout);
    CHECK(lock->acquire(a.self(), 1, shortly()) == Status::Timeout);
    CHECK(lock->owner() == a.self() && lock->count() == 1);
    CHECK(lock->release(a.self(), 2) == Lock::Release::Ok);
    CHECK(lock->count() == 0);
    lock->destroyed = 1;
    CHECK(lock->acquire(a.self(), 1, soon()) == Status::Destroyed);
}

void a_recursive_lock_counts() {
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

void a_dead_holders_lock_is_recovered() {
    Arena& a = new_arena();
    auto lock = new_lock();
    auto hold_and_die = [&] {
        return killed_child([&] { CHECK(lock->acquire(arena().self(), 1, soon()) == Status::Ok); });
    };
    hold_and_die();
    CHECK(lock->acquire(a.self(), 1, soon()) == Status::Recovered);
    CHECK(lock->release(a.self(), 1) == Lock::Release::Ok);
    hold_and_die();
    CHECK(lock->acquire(a.self(), 1, in(0.001)) ==
          Status::Recovered);  // a wait too short to notice by sleeping
    CHECK(lock->release(a.self(), 1) == Lock::Release::Ok);
    CHECK(a.reap(hold_and_die()));
    CHECK(lock->acquire(a.self(), 1, 0) == Status::Recovered);
    CHECK(a.reap_dead() == 2);
}

void a_semaphore_counts_and_is_bounded() {
    new_arena();
    auto s = new_semaphore(2, 3);
    CHECK(s->acquire(0) == Status::Ok && s->acquire(0) == Status::Ok);
    CHECK(s->acquire(0) == Status::Timeout && s->acquire(shortly()) == Status::Timeout);
    CHECK(!s->release(4) && s->release(3) && !s->release(1));
    CHECK(s->value() == 3);
    while (s->value()) CHECK(s->acquire(0) == Status::Ok);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([&] { CHECK(s->acquire(soon()) == Status::Ok); });
    usleep(20'000);
    CHECK(s->release(3));  // one call wakes all three
    for (auto& t : threads) t.join();
    CHECK(s->value() == 0);
    std::thread waiter([&] { CHECK(s->acquire(soon()) == Status::Destroyed); });
    usleep(20'000);
    s->destroy();
    waiter.join();
}

void a_dead_sleeper_does_not_slow_the_living() {
    new_arena();
    auto s = new_semaphore(0, 1000);
    pid_t child = fork_child([&] { s->acquire(kForever); });
    usleep(100'000);
    kill(child, SIGKILL);
    status_of(child);
    CHECK(s->release(1));  // would have woken it
    CHECK(s->acquire(0) == Status::Ok);
    Nanoseconds slowest = 0;
    auto other = new_semaphore(0, 1000);
    std::thread echo([&] {
        for (int i = 0; i < 20; ++i) {
            CHECK(other->acquire(soon()) == Status::Ok);
            usleep(2000);  // the other one sleeps by now
            CHECK(s->release(1));
        }
    });
    for (int i = 0; i < 20; ++i) {
        CHECK(s->release(1));  // nobody sleeps, but for the dead one
        CHECK(s->acquire(0) == Status::Ok);
        CHECK(other->release(1));
        Nanoseconds start = now();
        CHECK(s->acquire(soon()) == Status::Ok);
        slowest += now() - start;
    }
    echo.join();
    CHECK(slowest < 20 * kSecond / 20);  // each would take a slice of 0.1 s
}

void an_event_wakes_all() {
    new_arena();
    auto e = new_event();
    CHECK(!e->is_set() && e->wait(0) == Status::Timeout && e->wait(shortly()) == Status::Timeout);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([&] { CHECK(e->wait(soon()) == Status::Ok); });
    usleep(20'000);
    e->set();
    for (auto& t : threads) t.join();
    CHECK(e->is_set() && e->wait(0) == Status::Ok);
    e->clear();
    std::thread waiter([&] { CHECK(e->wait(soon()) == Status::Destroyed); });
    usleep(20'000);
    e->destroy();
    waiter.join();
}

void a_condition_wakes_in_order() {
    Arena& a = new_arena();
    auto c = new_condition();
    uint64_t before = blocks();
    Offset first = c->enter(a), second = c->enter(a), third = c->enter(a);
    CHECK(c->notify(a, 2) == 2);
    CHECK(c->sleep(a, first, soon()) == Status::Ok && c->sleep(a, second, soon()) == Status::Ok);
    CHECK(c->sleep(a, third, shortly()) == Status::Timeout);
    CHECK(c->leave(a, second) && c->leave(a, first));
    std::thread thread([&] { CHECK(c->sleep(a, third, soon()) == Status::Ok); });
    usleep(20'000);
    CHECK(c->notify(a, 10) == 1);
    thread.join();
    CHECK(c->leave(a, third));
    CHECK(c->notify(a, 1) == 0);
    CHECK(blocks() == before);
    Offset fourth = c->enter(a);
    std::thread waiter([&] { CHECK(c->sleep(a, fourth, soon()) == Status::Destroyed); });
    usleep(20'000);
    c->destroy(a);
    waiter.join();
    c->leave(a, fourth);
}

void a_dead_waiter_passes_its_notification_on() {
    Arena& a = new_arena();
    auto c = new_condition();
    uint64_t before = blocks();
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
    CHECK(c->notify(a, 1) == 1);  // the child's, which came first
    CHECK(c->sleep(a, mine, 0) == Status::Timeout);
    kill(child, SIGKILL);
    status_of(child);
    CHECK(a.reap(child));
    CHECK(c->sleep(a, mine, 0) == Status::Ok);
    CHECK(c->leave(a, mine));
    killed_child([&] { c->enter(arena()); });
    mine = c->enter(a);
    CHECK(c->notify(a, 1) == 1);  // not wasted on one that is dead already
    CHECK(c->leave(a, mine));
    CHECK(a.reap_dead() == 1);
    CHECK(blocks() == before);
}

void words_are_waited_on() {
    new_arena();
    auto w = new_words(3);
    CHECK(w->count() == 3 && w->at(2) == 0);
    CHECK(w->wait(1, 0, shortly()) == Status::Timeout);
    CHECK(w->wait(1, 7, 0) == Status::Ok);
    std::thread waiter([&] { CHECK(w->wait(1, 0, soon()) == Status::Ok); });
    usleep(20'000);
    w->at(0) = 1;
    w->changed();
    w->at(1) = 5;
    w->changed();
    waiter.join();
    std::thread destroyed([&] { CHECK(w->wait(2, 0, soon()) == Status::Destroyed); });
    usleep(20'000);
    w->destroy();
    destroyed.join();
}

// ---- lifetimes

bool attaches(Handle handle, Kind kind = Kind::Channel, Role role = Role::Plain) {
    try {
        arena().attach(handle, kind, role);
        return true;
    } catch (const ObjectDestroyed&) {
        return false;
    }
}

void an_object_lives_while_somebody_is_attached() {
    Arena& a = new_arena();
    auto c = new_channel();
    CHECK(put(*c, 1) == Status::Ok && put(*c, 2, 5000) == Status::Ok);
    CHECK(attaches(c.handle) && !attaches(c.handle, Kind::Lock));
    c.release();
    CHECK(a.exists(c.handle));
    c.release();
    CHECK(!a.exists(c.handle) && !attaches(c.handle));
    CHECK(blocks() == 1);
    auto next = new_channel();
    CHECK(next.handle.offset == c.handle.offset && next.handle.generation != c.handle.generation);
    CHECK(!attaches(c.handle));
    c.release();  // of one that is gone: nothing happens
    CHECK(a.exists(next.handle));
    CHECK(!a.exists({0, 0}) && !a.exists({UINT64_MAX, 0}) && !a.exists({next.handle.offset + 8, 0}));
}

void a_message_carries_an_object() {
    Arena& a = new_arena();
    auto c = new_channel();
    a.send(c.handle, Role::Plain);
    c.release();
    CHECK(a.exists(c.handle));
    CHECK(attaches(c.handle));
    c.release();
    CHECK(!a.exists(c.handle));
    // The record of that message is no record of one that carries the next object of that place.
    auto next = new_channel();
    CHECK(next.handle.offset == c.handle.offset);
    pid_t child = fork_child([&] {
        CHECK(attaches(next.handle));
        arena().send(next.handle, Role::Plain);
        die();
    });
    status_of(child);
    next.release();
    CHECK(a.exists(next.handle));
    CHECK(a.reap(child));  // who sent it is gone, and nobody came
    CHECK(!a.exists(next.handle));
    CHECK(blocks() == 1);
}

void records_of_messages_do_not_pile_up() {
    Arena& a = new_arena();
    for (int i = 0; i < 2000; ++i) {
        auto c = new_semaphore(1, 1);
        a.send(c.handle, Role::Plain);
        CHECK(attaches(c.handle, Kind::Semaphore));
        c.release();
        c.release();
    }
    CHECK(blocks() < 6);
}

void sent_objects_of_reused_memory_go_with_their_sender() {
    Arena& a = new_arena();
    pid_t child = fork_child([&] {
        for (int i = 0; i < 3; ++i) {
            auto c = new_channel();
            arena().send(c.handle, Role::Plain);
            if (i < 2) {
                CHECK(attaches(c.handle));
                c.release();
            }
            c.release();
        }
        die();
    });
    status_of(child);
    CHECK(a.reap(child));
    CHECK(blocks() == 0);
}

void what_a_dead_process_was_attached_to_is_released() {
    Arena& a = new_arena();
    auto c = new_channel(0, true, Role::Reader);
    pid_t child = killed_child([&] {
        CHECK(attaches(c.handle, Kind::Channel, Role::Writer));
        for (int i = 0; i < 200; ++i) new_channel();
        arena().allocate(3000);
        CHECK(put(*c, 7, 1000) == Status::Ok);
    });
    CHECK(blocks() > 200);
    CHECK(!c->end_is_gone(Role::Writer));
    CHECK(a.reap(child) && !a.reap(child));
    CHECK(c->end_is_gone(Role::Writer));
    CHECK(take(*c) == 7);
    c.release();
    CHECK(blocks() == 1);
}

void a_reserved_slot_is_attached_before_its_process_runs() {
    Arena& a = new_arena();
    auto c = new_channel();
    std::vector<Made<Semaphore>> more;
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
        CHECK(attaches(c.handle));
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
    CHECK(!a.exists(c.handle) && !a.exists(more[99].handle));  // leave() released all
    CHECK(!a.alive(slot) && !a.reap(child));
    CHECK(blocks() <= 2);
}

void a_slot_whose_process_never_came_is_reaped() {
    Arena& a = new_arena();
    auto c = new_channel();
    OwnerId slot = a.reserve_slot();
    a.attach_for(slot, c.handle, Role::Plain);
    c.release();
    pid_t child = fork_child([] { _exit(1); });
    a.promise_slot(slot, child);
    status_of(child);
    CHECK(a.reap(child));
    CHECK(!a.exists(c.handle) && !a.alive(slot));
    CHECK(blocks() == 1);
}

void the_same_process_id_again_is_another_process() {
    Arena& a = new_arena();
    OwnerId slot = a.reserve_slot();
    a.fill_slot(slot, getpid());
    CHECK(a.alive(slot) && !a.reap(getpid()));
    OwnerId promised = a.reserve_slot();
    a.promise_slot(promised, getpid());  // died before it took the slot; its process id is ours by now
    CHECK(a.reap(getpid()));
    CHECK(a.alive(slot) && !a.alive(promised));
}

void leaving_keeps_what_other_threads_may_use() {
    Arena& a = new_arena();
    auto c = new_channel();
    pid_t child = fork_child([&] {
        CHECK(attaches(c.handle));
        arena().allocate(100);
        arena().leave();
    });
    join_child(child);
    c.release();
    CHECK(a.exists(c.handle));
    CHECK(a.reap(child));
    CHECK(blocks() == 1);
}

void a_forked_childs_copy_of_a_handle_releases_nothing() {
    Arena& a = new_arena();
    auto c = new_channel();
    join_child(fork_child([&] { c.release(); }));
    CHECK(a.exists(c.handle));
}

void a_process_that_died_twice_over_is_reaped_once() {
    Arena& a = new_arena();
    pid_t child = killed_child([] { arena().allocate(5000); });
    std::atomic<int> reaped{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([&] { reaped += a.reap(child); });
    for (auto& t : threads) t.join();
    CHECK(reaped == 1);
    CHECK(blocks() == 0);
}

void threads_attach_and_release_at_the_same_time() {
    Arena& a = new_arena();
    auto c = new_channel();
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 2000; ++i) {
                CHECK(attaches(c.handle));
                if (i % 3 == 0) {
                    a.send(c.handle, Role::Plain);
                    CHECK(attaches(c.handle));
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
    CHECK(blocks() < 6);
}

void what_a_process_waits_for_is_seen_from_outside() {
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

void waits_and_tasks_are_noted_while_the_run_is_traced() {
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
    wait_for(
        -1'000'000'000);  // too short to be seen in a trace, however long this thread is kept from running
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

void a_task_is_told_while_it_runs() {
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

void a_task_during_which_its_process_ended_has_failed() {
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

void of_more_spans_than_are_kept_the_newest_are_told() {
    Arena& a = new_arena();
    a.trace(true);
    for (uint64_t i = 0; i < kSpans + 100; ++i) a.end_task(i, 1, now() - 20'000);
    uint64_t next = 0, lost;
    std::vector<SpanInfo> spans = a.take_spans(next, lost);
    CHECK(lost == 100 && spans.size() == kSpans && next == kSpans + 100);
    CHECK(spans.front().what == 100 && spans.back().what == kSpans + 99);
}

void processes_note_spans_while_others_are_read() {
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

void each_of_a_few_threads_notes_its_own_wait() {
    Arena& a = new_arena();
    auto one = new_channel(), two = new_channel();
    int first = a.begin_wait(one.handle.offset, Purpose::Get, 1, 0);
    int second = a.begin_wait(two.handle.offset, Purpose::Put, 2, 0);
    a.end_wait(first);
    CHECK(a.waits().size() == 1 && a.waits()[0].object == two.handle.offset);
    while (first != -1) first = a.begin_wait(one.handle.offset, Purpose::Get, 3, 0);
    a.end_wait(first);  // of one that found no place
    CHECK(a.waits().size() > 1);
    a.end_wait(second);
}

void what_a_dead_process_waited_for_goes_with_it() {
    Arena& a = new_arena();
    auto channel = new_channel();
    pid_t pid = killed_child([&] { arena().begin_wait(channel.handle.offset, Purpose::Get, 1, 0); });
    CHECK(a.reap(pid));
    CHECK(a.waits().empty());
}

void who_waits_learns_that_somebody_asks() {
    Arena& a = new_arena();
    CHECK(!a.asked());
    a.inquire(in(20));
    CHECK(a.asked());
    a.inquire(now());
    CHECK(!a.asked());
}

// ---- the fork server

std::string start_request(Handle record, const std::string& more = "", uint8_t pairs = 0) {
    std::string request;
    MsgpackWriter out(request);
    out.map(static_cast<uint8_t>(4 + pairs)).text("puid").number(7).text("name").text("a name");
    out.text("main").array(2).text("path").text("/program.py");
    out.text("record").array(3).number(record.offset).number(record.generation).number(0);
    return request + more;
}

std::string payload_of(const std::string& payload) {
    std::string more;
    MsgpackWriter(more).text("payload").text(payload);
    return more;
}

// A new arena, and the sockets of a fork server in it, as the agent and who starts processes have them.
struct Served {
    int requests[2], agent[2], signals;

    Served() {
        new_arena();
        CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, requests) == 0);
        CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, agent) == 0);
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGCHLD);
        sigaddset(&set, SIGTERM);
        sigprocmask(SIG_BLOCK, &set, nullptr);
        signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    }
    ForkServer server() const { return {requests[1], agent[1], signals}; }
    void ask(const std::string& request, const std::vector<int>& descriptors = {0, 1, 2}) const {
        CHECK(send_packet(requests[0], request, "", descriptors) == static_cast<ssize_t>(request.size()));
    }
    std::string events() const {
        std::string all;
        char packet[65536];
        ssize_t size;
        while ((size = recv(agent[0], packet, sizeof packet, MSG_DONTWAIT)) > 0)
            all.append(packet, static_cast<size_t>(size));
        return all;
    }
};

// What it does next; Wait once the record says something.
Next after_waiting(ForkServer& server, const Made<Words>& record) {
    for (;;) {
        Next next = server.next();
        if (next != Next::Wait || record->at(kStatus) != kAsked) return next;
        server.wait();
    }
}

// From then on the server forks for requests with the main program of start_request() by itself.
void let_it_fork(const Served& sockets, ForkServer& server) {
    auto record = new_words(4);
    sockets.ask(start_request(record.handle));
    CHECK(after_waiting(server, record) == Next::Request);
    CHECK(server.request().puid == 7 && server.request().name == "a name");
    CHECK(server.descriptors().size() == 3);
    server.fork_alike();
    server.failed(ENOENT, "not this one");
    CHECK(record->at(kStatus) == kFailed && record->at(kError) == ENOENT);
    record.release();
}

void a_server_forks_by_itself_once_it_may() {
    Served sockets;
    ForkServer server = sockets.server();
    let_it_fork(sockets, server);
    auto record = new_words(4);
    sockets.ask(start_request(record.handle, payload_of("its payload"), 1));
    pid_t me = getpid();
    int may_end[2];
    CHECK(pipe(may_end) == 0);
    if (after_waiting(server, record) == Next::Child) {
        CHECK(getppid() == me && server.request().payload == "its payload");
        server.enter_child();
        char byte;
        close(may_end[1]);
        CHECK(read(may_end[0], &byte, 1) == 0);
        _exit(3);
    }
    pid_t child = static_cast<pid_t>(record->at(kPid).load());
    CHECK(server.running() == std::vector<pid_t>{child});
    close(may_end[1]);
    while (record->at(kStatus) != kExited) {
        server.wait();
        CHECK(server.next() == Next::Wait);
    }
    CHECK(record->at(kCode) == 3 && server.running().empty());
    server.synchronise();
    std::string told = sockets.events();
    for (auto event : {"failed", "started", "exited", "synchronised"}) CHECK(told.find(event) != told.npos);
    record.release();
    CHECK(blocks() <= 1);
}

void another_main_program_is_not_forked_for_unasked() {
    Served sockets;
    ForkServer server = sockets.server();
    let_it_fork(sockets, server);
    auto record = new_words(4);
    std::string surroundings;
    MsgpackWriter(surroundings).text("surroundings").text("others");
    for (int round = 0; round < 2; ++round) {
        sockets.ask(start_request(record.handle, surroundings, 1));
        CHECK(after_waiting(server, record) == Next::Request);
        server.failed(ENOENT, "nor this one");
        record->at(kStatus) = kAsked;
    }
    sockets.ask(start_request(record.handle));  // asked again for, since the process has changed in between
    CHECK(after_waiting(server, record) == Next::Request);
}

void a_request_that_is_too_large_for_a_datagram_lies_beside_it() {
    Served sockets;
    ForkServer server = sockets.server();
    auto record = new_words(4);
    std::string request = start_request(record.handle, payload_of(std::string(3 * kMiB, 'x')), 1);
    FILE* beside = tmpfile();
    CHECK(fwrite(request.data(), request.size(), 1, beside) == 1 && fflush(beside) == 0);
    sockets.ask("\xc0", {0, 1, 2, fileno(beside)});
    CHECK(after_waiting(server, record) == Next::Request);
    CHECK(server.request().payload.size() == 3 * kMiB && server.descriptors().size() == 3);
}

void requests_that_are_no_requests_are_refused() {
    Served sockets;
    ForkServer server = sockets.server();
    auto record = new_words(4);
    std::string whole = start_request(record.handle, payload_of("its payload"), 1);
    for (size_t size = 0; size < whole.size(); ++size) {
        sockets.ask(whole.substr(0, size));
        CHECK(after_waiting(server, record) == Next::Refused);
    }
    sockets.ask(start_request({record.handle.offset, record.handle.generation + 1}));
    CHECK(after_waiting(server, record) == Next::Refused);
    // Whatever is changed in it: it is refused, or a request still, for some other record maybe.
    unsigned seed = 1;
    for (int round = 0; round < 5000; ++round) {
        std::string changed = whole;
        for (int change = rand_r(&seed) % 4; change >= 0; --change)
            changed[static_cast<size_t>(rand_r(&seed)) % changed.size()] = static_cast<char>(rand_r(&seed));
        sockets.ask(changed);
        Next next = after_waiting(server, record);
        if (next == Next::Request) server.failed(ENOENT, "a test");
        CHECK(next == Next::Request || next == Next::Refused || record->at(kStatus) == kFailed);
        record->at(kStatus) = kAsked;
        sockets.events();
    }
    sockets.ask(whole, {});  // its descriptors were lost on the way
    CHECK(after_waiting(server, record) == Next::Wait && record->at(kError) == EMFILE);
}

void arenas_are_opened_by_descriptor() {
    Arena& a = new_arena();
    auto c = new_channel();
    CHECK(put(*c, 3) == Status::Ok);
    Arena* other = Arena::open(a.fd());
    CHECK(other->id() == a.id());
    CHECK(other->at<Channel>(c.handle.offset)->size() == 1);
    int nothing = memfd_create("nothing", 0);
    CHECK(ftruncate(nothing, 4 * kMiB) == 0);
    for (int fd : {nothing, 987}) {
        try {
            Arena::open(fd);
            CHECK(false);
        } catch (const SystemFailure& e) {
            CHECK(e.error == (fd == nothing ? EINVAL : EBADF));
        }
    }
}

// ---- killed at random, with several processes and threads at work

void survivors_go_on_when_others_are_killed() {
    Arena& a = new_arena();
    auto c = new_channel(20);
    auto lock = new_lock();
    uint64_t before = blocks();
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
        for (pid_t child : children) status_of(child);
        Status status = lock->acquire(a.self(), 1, soon());
        CHECK(status == Status::Ok || status == Status::Recovered);
        lock->release(a.self(), 1);
        a.reap_dead();
        uint64_t number;
        while (get(*c, number) == Status::Ok);
        CHECK(put(*c, 1, 64, soon()) == Status::Ok && take(*c) == 1);
        CHECK(blocks() <= before + 257);  // the channel keeps some
        check_free_lists();
    }
    c.release();
    CHECK(blocks() == before - 1);
}

// ---- killed after every single change

#ifndef DRAGON_SANITIZED

// What operations change: the arena's tables, and of each size class the first blocks and what is known of
// them.
class Watch {
  public:
    Watch() {
        Arena& a = arena();
        add(0, offsetof(Header, slots) + 32 * sizeof(Slot));
        for (size_t size : {size_t{64}, size_t{256}, size_t{512}, size_t{1024}, size_t{8192}, kMiB}) {
            Offset block = a.allocate(size);
            add(block / 65536 * 65536, 16 * 1024);
            add(static_cast<Offset>(reinterpret_cast<char*>(&a.meta(block)) - a.at<char>(0)) / 4096 * 4096,
                4096);
            a.free(block);
        }
        changed();
    }
    bool changed() {
        bool any = false;
        for (auto& [start, seen] : ranges_) {
            const char* now = arena().at<char>(start);
            if (memcmp(seen.data(), now, seen.size()) == 0) continue;
            memcpy(seen.data(), now, seen.size());
            any = true;
        }
        return any;
    }
    // Has this process's writes to what is watched fail, or succeed again.
    void protect(int protection) const {
        for (auto& [start, seen] : ranges_)
            CHECK(mprotect(arena().at<char>(start), seen.size(), protection) == 0);
    }

  private:
    void add(Offset start, size_t size) {
        size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        Offset first = start / page * page;
        ranges_.emplace_back(first, std::vector<char>((start + size - first + page - 1) / page * page));
    }
    std::vector<std::pair<Offset, std::vector<char>>> ranges_;
};

struct Operation {
    std::function<void()> prepare;                    // in the parent
    std::function<void()> enter = [] {};              // in the child, before
    std::function<void()> act;                        // in the child, killed within
    std::function<void()> meanwhile = [] {};          // in the parent, while the child is stopped
    std::function<void(bool)> survive = [](bool) {};  // in the parent, before the dead child is reaped
    std::function<void(bool)> check;                  // after; true: the child had done it all
};

// Between writes the child runs freely: what is watched is protected, so that the next write stops it. From
// there it goes in single steps, until there was no change for some.
constexpr int kQuiet = 200;
const Watch* protecting;

void let_write(int) {
    protecting->protect(PROT_READ | PROT_WRITE);
    raise(SIGTRAP);  // single steps from here
}
void keep_from_writing(int) { protecting->protect(PROT_READ); }

// Returns whether the child did it all before its `kill_after`th change.
bool killed_after(const Operation& o, Watch& watch, int kill_after, pid_t& child) {
    child = fork_child([&] {
        arena().self();
        o.enter();
        protecting = &watch;
        signal(SIGSEGV, let_write);
        signal(SIGUSR1, keep_from_writing);
        if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kSkipped);
        raise(SIGSTOP);
        o.act();
        raise(SIGSTOP);
    });
    int status = status_of(child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) {
        puts("  no ptrace here");
        _exit(kSkipped);
    }
    CHECK(WIFSTOPPED(status));
    watch.changed();
    bool can_write = false;
    long deliver = SIGUSR1;
    auto request = PTRACE_CONT;
    for (int changes = 0, quiet = 0; changes < kill_after;) {
        CHECK(ptrace(request, child, nullptr, deliver) == 0);
        status = status_of(child);
        CHECK(WIFSTOPPED(status));
        if (WSTOPSIG(status) == SIGSTOP) break;
        bool changed = watch.changed();  // before a write: by a system call
        changes += changed;
        quiet = changed ? 0 : quiet + 1;
        if (WSTOPSIG(status) == SIGSEGV) {
            CHECK(!can_write);  // or else it is a crash
            can_write = true;
            quiet = 0;
            deliver = SIGSEGV;
            request = PTRACE_CONT;
            continue;
        }
        CHECK(WSTOPSIG(status) == SIGTRAP);
        can_write = quiet <= kQuiet;
        deliver = can_write ? 0 : SIGUSR1;
        request = can_write ? PTRACE_SINGLESTEP : PTRACE_CONT;
    }
    bool finished = WSTOPSIG(status) == SIGSTOP && kill_after > 0;
    o.meanwhile();
    kill(child, SIGKILL);
    status_of(child);
    return finished;
}

void kill_after_every_change(const char* name, const Operation& o) {
    Watch watch;
    check_free_lists();
    uint64_t before = 0;
    int n = 0;
    for (bool finished = false; !finished; ++n) {
        alarm(kPatience);  // for each change, as their number takes minutes on a slow machine
        o.prepare();
        pid_t child;
        finished = killed_after(o, watch, n, child);
        o.survive(finished);
        arena().reap_dead();
        CHECK(!arena().reap(child));
        o.check(finished);
        check_free_lists();
        if (n == 0)
            before = blocks();
        else if (blocks() != before) {
            fprintf(stderr, "%s: killed after change %d: %lu blocks, not %lu\n", name, n, blocks(), before);
            _exit(1);
        }
    }
    CHECK(n > 1);
    printf("  %s: killed after each of %d changes\n", name, n - 1);
}

Made<Channel> subject;

// What is true of a queue after anything: its messages are whole, it takes and gives more, and its tasks can
// be done.
void check_queue(uint64_t at_least, uint64_t at_most) {
    uint64_t size = subject->size();
    CHECK(size >= at_least && size <= at_most);
    uint64_t number;
    for (uint64_t i = 0; i < size; ++i) {
        CHECK(get(*subject, number) == Status::Ok);
        subject->task_done();
    }
    CHECK(get(*subject, number) == Status::Timeout);
    for (uint64_t i = 1; i <= 3; ++i) CHECK(put(*subject, i, i == 2 ? 64 : 304) == Status::Ok);
    for (uint64_t i = 1; i <= 3; ++i) CHECK(take(*subject) == i);
    for (int i = 0; i < 3; ++i) CHECK(subject->task_done());
    subject.release();
}

void queue_operations(bool survivor_first) {
    new_arena();
    for (size_t size : {64, 1000})
        for (int before : {0, 1, 2})
            for (bool spares : {false, true}) {
                Operation o;
                uint64_t there = static_cast<uint64_t>(before);
                o.prepare = [=] {
                    subject = new_channel(8);
                    for (uint64_t i = 1; i <= 2 && spares; ++i) CHECK(put(*subject, i) == Status::Ok);
                    for (int i = 0; i < 2 && spares; ++i) {
                        take(*subject);
                        CHECK(subject->task_done());
                    }
                    for (uint64_t i = 1; i <= there; ++i) CHECK(put(*subject, i, size) == Status::Ok);
                };
                if (survivor_first)
                    o.survive = [=](bool) {
                        CHECK(put(*subject, 77, 64, soon()) == Status::Ok);  // repairs
                        uint64_t number = 0, seen = 0;
                        for (; number != 77; ++seen) CHECK(get(*subject, number, soon()) == Status::Ok);
                        for (uint64_t i = 0; i < seen; ++i) CHECK(subject->task_done());
                    };
                auto stays = [=](uint64_t n) { return survivor_first ? 0 : n; };
                std::string what = std::to_string(size) + " bytes, " + std::to_string(before) + " there" +
                                   (spares ? ", spares" : "");
                o.act = [=] { put(*subject, 9, size); };
                o.check = [=](bool done) { check_queue(stays(there + done), stays(there + 1)); };
                kill_after_every_change(("put of " + what).c_str(), o);
                if (before == 0) continue;
                o.act = [=] { put(*subject, 1, size, 0, Side::Front); };
                auto prepare = o.prepare;
                o.prepare = [=] {
                    prepare();
                    CHECK(take(*subject) == 1);
                };
                o.check = [=](bool done) { check_queue(stays(there - 1 + done), stays(there)); };
                kill_after_every_change(("putting back of " + what).c_str(), o);
                o.prepare = prepare;
                o.act = [=] {
                    uint64_t number;
                    get(*subject, number);
                };
                o.check = [=](bool done) { check_queue(stays(there - 1), stays(there - done)); };
                kill_after_every_change(("get of " + what).c_str(), o);
            }
}

void killed_in_queue_operations_and_reaped() { queue_operations(false); }
void killed_in_queue_operations_and_survived() { queue_operations(true); }

void killed_in_get_beyond_the_spares() {
    new_arena();
    Operation o;
    o.prepare = [] {
        subject = new_channel();
        for (uint64_t i = 1; i <= 258; ++i) put(*subject, i);
        for (uint64_t i = 1; i <= 256; ++i) CHECK(take(*subject) == i);
        for (uint64_t i = 1; i <= 256; ++i) CHECK(subject->task_done());
    };
    o.act = [] {
        uint64_t number;
        get(*subject, number);
    };
    o.check = [](bool done) { check_queue(1, done ? 1 : 2); };
    kill_after_every_change("get with all spares there", o);
}

void killed_in_tasks_and_destruction() {
    new_arena();
    Operation o;
    o.prepare = [] {
        subject = new_channel();
        for (uint64_t i = 1; i <= 3; ++i) put(*subject, i, i == 2 ? 1000 : 64);
        CHECK(take(*subject) == 1);
    };
    o.act = [] { subject->task_done(); };
    o.check = [](bool done) {
        take(*subject);
        take(*subject);
        while (subject->task_done());
        CHECK(subject->join(0) == Status::Ok || done);
        CHECK(subject->join(0) == Status::Ok);
        subject.release();
    };
    kill_after_every_change("task_done", o);
    o.act = [] { subject->destroy(arena()); };
    o.check = [](bool done) {
        CHECK(!done || put(*subject, 1) == Status::Destroyed);
        subject->destroy(arena());
        CHECK(subject->size() == 0);
        subject.release();
    };
    kill_after_every_change("destroy", o);
}

void killed_in_allocate_and_free() {
    Arena& a = new_arena();
    static Offset block;
    for (size_t size : {size_t{200}, size_t{8000}, kMiB}) {
        Operation o;
        o.prepare = [&, size] { a.free(a.allocate(size)); };
        o.act = [size] { arena().allocate(size); };
        o.check = [](bool) {};
        kill_after_every_change(("allocate of " + std::to_string(size)).c_str(), o);
        o.enter = [size] { block = arena().allocate(size); };
        o.act = [] { arena().free(block); };
        kill_after_every_change(("free of " + std::to_string(size)).c_str(), o);
    }
}

void killed_in_carve_trim_and_cold_blocks() {
    Arena& a = new_arena();
    uint64_t committed = 0;
    static std::vector<Offset> held;
    Operation o;
    o.prepare = [&] {
        a.trim();
        committed = a.usage().committed;
    };
    o.act = [] { arena().allocate(kMiB); };
    o.check = [&](bool) {
        a.trim();
        CHECK(a.usage().committed == committed);
    };
    kill_after_every_change("allocate of a cold block", o);
    o.prepare = [&] {
        held = {a.allocate(kMiB), a.allocate(kMiB)};
        for (Offset b : held) a.free(b);
    };
    o.act = [] { arena().trim(2 * kMiB); };
    kill_after_every_change("trim", o);

    // A class of which no block is free.
    o.prepare = [&] {
        held.clear();
        do held.push_back(a.allocate(512));
        while (a.has_warm(512));
    };
    o.act = [] { arena().allocate(512); };
    o.check = [&](bool) {
        for (Offset b : held) a.free(b);
    };
    kill_after_every_change("allocate of a new block", o);
}

void killed_in_changes_of_references() {
    Arena& a = new_arena();
    Operation o;
    o.prepare = [] {};
    o.act = [] { new_channel(); };
    o.check = [](bool) {};
    kill_after_every_change("create", o);

    o.prepare = [] { subject = new_channel(0, true, Role::Reader); };
    o.act = [] { arena().attach(subject.handle, Kind::Channel, Role::Writer); };
    o.check = [&](bool) {
        CHECK(subject->references == 1 && subject->ends[0] == 1 && subject->ends[1] == 0);
        subject.release();
        CHECK(!a.exists(subject.handle));
    };
    kill_after_every_change("attach", o);

    o.enter = [] { arena().attach(subject.handle, Kind::Channel, Role::Writer); };
    o.act = [] { arena().release(subject.handle, Role::Writer); };
    kill_after_every_change("release", o);
    o.act = [] { arena().send(subject.handle, Role::Writer); };
    kill_after_every_change("send", o);
    o.act = [] { arena().leave(); };
    kill_after_every_change("leave", o);

    o.prepare = [&] {
        subject = new_channel(0, true, Role::Reader);
        a.send(subject.handle, Role::Writer);
    };
    o.enter = [] {};
    o.act = [] { arena().attach(subject.handle, Kind::Channel, Role::Writer); };
    o.check = [&](bool) {
        if (subject->references >> 32) {
            CHECK(attaches(subject.handle, Kind::Channel, Role::Writer));
            a.release(subject.handle, Role::Writer);
        }
        CHECK(subject->references == 1 && subject->ends[1] == 0);
        subject.release();
    };
    kill_after_every_change("attach of what was sent", o);
}

void killed_as_the_last_one_attached() {
    Arena& a = new_arena();
    Operation o;
    o.prepare = [] {};
    o.enter = [] {
        subject = new_channel();
        for (uint64_t i = 1; i <= 3; ++i) put(*subject, i, i == 2 ? 1000 : 64);
        CHECK(take(*subject) == 1);
    };
    o.act = [] { subject.release(); };
    o.check = [](bool) {};
    kill_after_every_change("last release", o);

    static OwnerId slot;
    o.prepare = [] {};
    o.enter = [] {
        subject = new_channel();
        slot = arena().reserve_slot();
    };
    o.act = [] {
        arena().attach_for(slot, subject.handle, Role::Plain);
        arena().fill_slot(slot, 1 << 23);  // no process
    };
    o.check = [&](bool) {
        // Slots that were never filled are for ever about to be; this is their end.
        SlotInfo slots[64];
        for (size_t i = 0, n = a.processes(slots, 64); i < n; ++i)
            if (slots[i].pid == 0) a.fill_slot(slots[i].owner, 1 << 23);
        a.reap_dead();
    };
    kill_after_every_change("attach_for", o);
}

void killed_with_locks_and_conditions() {
    Arena& a = new_arena();
    auto lock = new_lock(true);
    auto condition = new_condition();
    Operation o;
    o.prepare = [] {};
    o.act = [&] {
        lock->acquire(arena().self(), 1, soon());
        lock->release(arena().self(), 1);
    };
    o.check = [&](bool) {
        Status status = lock->acquire(a.self(), 1, soon());
        CHECK(status == Status::Ok || status == Status::Recovered);
        CHECK(lock->count() == 1);
        CHECK(lock->release(a.self(), 1) == Lock::Release::Ok && lock->count() == 0);
    };
    kill_after_every_change("lock", o);

    static Offset mine;
    o.prepare = [&] { mine = condition->enter(a); };
    o.act = [&] {
        Offset waiter = condition->enter(arena());
        condition->leave(arena(), waiter);
    };
    o.check = [&](bool) {
        CHECK(condition->notify(a, 5) == 1);
        CHECK(condition->leave(a, mine));
    };
    kill_after_every_change("wait on a condition", o);
    o.act = [&] { condition->notify(arena(), 1); };
    o.check = [&](bool done) {
        CHECK(condition->notify(a, 1) == 1 || condition->sleep(a, mine, 0) == Status::Ok);
        CHECK(condition->leave(a, mine) || !done);
    };
    kill_after_every_change("notify", o);
}

void killed_while_it_reaps() {
    Arena& a = new_arena();
    static pid_t dead;
    Operation o;
    o.prepare = [&] {
        subject = new_channel();
        dead = killed_child([] {
            CHECK(attaches(subject.handle));
            auto own = new_channel();
            put(*own, 1);
            put(*own, 2, 1000);
            arena().send(own.handle, Role::Plain);
            arena().allocate(5000);
            // As if it had died in the middle of a put.
            put(*subject, 3);
        });
    };
    o.act = [] { arena().reap(dead); };
    o.check = [&](bool) {
        CHECK(subject->references == 1);
        check_queue(1, 1);
        CHECK(!a.reap(dead));
    };
    kill_after_every_change("reap", o);
}

// While the child is stopped: who uses other objects notices nothing of it, and who uses the same waits no
// longer than it said.
void stopped_after_every_change(const char* name, Operation o) {
    Arena& a = arena();
    static Made<Channel> other;
    other = new_channel();
    o.meanwhile = [&] {
        for (size_t size : {64, 232, 1000, 8000, 1 << 20}) {
            CHECK(put(*other, size, size, soon()) == Status::Ok);
            CHECK(take(*other) == size);
        }
        auto own = new_channel(0, true, Role::Reader);
        a.send(own.handle, Role::Writer);
        CHECK(attaches(own.handle, Kind::Channel, Role::Writer));
        a.release(own.handle, Role::Writer);
        own.release();
        auto condition = new_condition();
        Offset waiter = condition->enter(a);
        CHECK(condition->notify(a, 1) == 1 && condition->leave(a, waiter));
        condition.release();
        a.trim(kMiB);
        pid_t dead = killed_child([&] {
            CHECK(attaches(other.handle));
            put(*other, 1, 1000);
            arena().allocate(5000);
        });
        CHECK(a.reap(dead));
        CHECK(take(*other) == 1);
        Nanoseconds start = now();
        uint64_t number;
        for (Nanoseconds deadline : {Nanoseconds{0}, shortly()}) {
            Status got = get(*subject, number, deadline), put_there = put(*subject, 1, 64, deadline);
            for (Status status : {got, put_there})
                CHECK(status == Status::Ok || status == Status::Timeout || status == Status::Busy ||
                      status == Status::Destroyed);
        }
        CHECK(now() - start < 20 * kSecond);
    };
    o.survive = [](bool) {};
    o.check = [](bool) { subject.release(); };
    kill_after_every_change(name, o);
    other.release();
}

void others_go_on_while_one_is_stopped() {
    new_arena();
    Operation o;
    o.prepare = [] {
        subject = new_channel(8);
        for (uint64_t i = 1; i <= 2; ++i) CHECK(put(*subject, i, i == 2 ? 1000 : 64) == Status::Ok);
    };
    for (size_t size : {64, 1000, 8000}) {
        o.act = [=] { put(*subject, 9, size); };
        stopped_after_every_change("stopped in put", o);
    }
    o.act = [] {
        uint64_t number;
        get(*subject, number);
        get(*subject, number);
    };
    stopped_after_every_change("stopped in get", o);
    static Offset block;
    for (size_t size : {size_t{64}, size_t{1000}, kMiB}) {
        o.enter = [] {};
        o.act = [=] { arena().allocate(size); };
        stopped_after_every_change("stopped in allocate", o);
        o.enter = [=] { block = arena().allocate(size); };
        o.act = [] { arena().free(block); };
        stopped_after_every_change("stopped in free", o);
    }
    o.enter = [] {};
    o.act = [] { new_channel().release(); };
    stopped_after_every_change("stopped in create and release", o);
    o.act = [] { arena().send(subject.handle, Role::Plain); };
    stopped_after_every_change("stopped in send", o);
    o.act = [] { subject->destroy(arena()); };
    stopped_after_every_change("stopped in destroy", o);
}

void killed_while_it_takes_a_slot() {
    Arena& a = new_arena();
    Operation o;
    o.prepare = [] {};
    o.act = [] {
        OwnerId slot = arena().reserve_slot();
        arena().fill_slot(slot, 1 << 23);
    };
    o.check = [&](bool) {
        SlotInfo slots[64];
        for (size_t i = 0, n = a.processes(slots, 64); i < n; ++i)
            if (slots[i].pid == 0) a.fill_slot(slots[i].owner, 1 << 23);
        a.reap_dead();
        CHECK(a.processes(slots, 64) == 1);
    };
    kill_after_every_change("reserve_slot", o);
}

#endif

struct Test {
    const char* name;
    void (*run)();
};
#define TEST(function) {#function, function}
const Test tests[] = {
#ifndef DRAGON_SANITIZED
    TEST(others_go_on_while_one_is_stopped),  // takes by far the longest, so it begins first
#endif
    TEST(size_classes_hold_what_they_promise),
    TEST(freed_blocks_are_used_again),
    TEST(limit_is_an_error_that_names_the_numbers),
    TEST(small_blocks_can_use_the_memory_to_the_limit),
    TEST(trim_gives_pages_back_and_cold_blocks_serve_again),
    TEST(many_freed_large_blocks_give_their_pages_back),
    TEST(threads_never_get_the_same_block),
    TEST(messages_come_in_order_whatever_their_size),
    TEST(who_takes_a_task_has_its_ticket_from_then_on),
    TEST(users_queues_are_found_and_counted),
    TEST(who_waits_at_a_queue_is_counted_until_it_is_killed),
    TEST(looking_at_queues_disturbs_nobody_who_makes_them),
    TEST(a_full_channel_takes_no_more),
    TEST(a_message_that_is_put_back_is_the_next_one),
    TEST(an_empty_channel_times_out),
    TEST(every_message_reaches_one_reader),
    TEST(processes_exchange_messages),
    TEST(destroy_wakes_who_waits),
    TEST(a_pipe_ends_when_its_last_writer_goes),
    TEST(a_pipe_breaks_when_its_last_reader_goes),
    TEST(an_end_that_a_message_carries_is_not_gone),
    TEST(the_bell_is_readable_while_the_channel_is),
    TEST(a_child_can_open_bells_whatever_threads_of_its_parent_did),
    TEST(the_agent_hears_of_a_channel_once_each_time_there_is_something_again),
    TEST(join_waits_for_every_task),
    TEST(a_lock_admits_one_at_a_time),
    TEST(a_recursive_lock_counts),
    TEST(a_dead_holders_lock_is_recovered),
    TEST(a_semaphore_counts_and_is_bounded),
    TEST(a_dead_sleeper_does_not_slow_the_living),
    TEST(an_event_wakes_all),
    TEST(a_condition_wakes_in_order),
    TEST(a_dead_waiter_passes_its_notification_on),
    TEST(words_are_waited_on),
    TEST(an_object_lives_while_somebody_is_attached),
    TEST(a_message_carries_an_object),
    TEST(records_of_messages_do_not_pile_up),
    TEST(sent_objects_of_reused_memory_go_with_their_sender),
    TEST(what_a_dead_process_was_attached_to_is_released),
    TEST(a_reserved_slot_is_attached_before_its_process_runs),
    TEST(a_slot_whose_process_never_came_is_reaped),
    TEST(the_same_process_id_again_is_another_process),
    TEST(leaving_keeps_what_other_threads_may_use),
    TEST(a_forked_childs_copy_of_a_handle_releases_nothing),
    TEST(a_process_that_died_twice_over_is_reaped_once),
    TEST(threads_attach_and_release_at_the_same_time),
    TEST(what_a_process_waits_for_is_seen_from_outside),
    TEST(waits_and_tasks_are_noted_while_the_run_is_traced),
    TEST(a_task_is_told_while_it_runs),
    TEST(a_task_during_which_its_process_ended_has_failed),
    TEST(of_more_spans_than_are_kept_the_newest_are_told),
    TEST(processes_note_spans_while_others_are_read),
    TEST(each_of_a_few_threads_notes_its_own_wait),
    TEST(what_a_dead_process_waited_for_goes_with_it),
    TEST(who_waits_learns_that_somebody_asks),
    TEST(a_server_forks_by_itself_once_it_may),
    TEST(another_main_program_is_not_forked_for_unasked),
    TEST(a_request_that_is_too_large_for_a_datagram_lies_beside_it),
    TEST(requests_that_are_no_requests_are_refused),
    TEST(arenas_are_opened_by_descriptor),
    TEST(survivors_go_on_when_others_are_killed),
#ifndef DRAGON_SANITIZED
    TEST(killed_in_queue_operations_and_reaped),
    TEST(killed_in_queue_operations_and_survived),
    TEST(killed_in_get_beyond_the_spares),
    TEST(killed_in_tasks_and_destruction),
    TEST(killed_in_allocate_and_free),
    TEST(killed_in_carve_trim_and_cold_blocks),
    TEST(killed_in_changes_of_references),
    TEST(killed_as_the_last_one_attached),
    TEST(killed_with_locks_and_conditions),
    TEST(killed_while_it_takes_a_slot),
    TEST(killed_while_it_reaps),
#endif
};

struct Running {
    const Test* test;
    FILE* output;
    Nanoseconds start;
};

// In a process group of its own, so that what a failed test leaves running ends with it.
pid_t start(const Test& test, FILE* output) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        dup2(fileno(output), STDOUT_FILENO);
        dup2(fileno(output), STDERR_FILENO);
        alarm(kPatience);
        test.run();
        fflush(stdout);
        _exit(0);
    }
    return pid;
}

// Whether the test has failed, which is told after what it printed.
bool end(const Running& running, pid_t pid, int status) {
    kill(-pid, SIGKILL);
    rewind(running.output);
    char part[4096];
    while (size_t n = fread(part, 1, sizeof part, running.output)) fwrite(part, 1, n, stdout);
    fclose(running.output);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    const char* result = code == 0               ? "ok"
                         : code == kSkipped      ? "skipped"
                         : code == 128 + SIGALRM ? "HUNG"
                                                 : "FAILED";
    printf("%-7s %s (%.2f s)\n", result, running.test->name,
           static_cast<double>(now() - running.start) / 1e9);
    return code != 0 && code != kSkipped;
}

}  // namespace
}  // namespace dragon

// Runs the tests that are named, or all, as many at once as there are processors.
int main(int count, char** names) {
    using namespace dragon;
    std::set<std::string> wanted(names + 1, names + count);
    std::vector<const Test*> waiting;
    for (const Test& test : tests)
        if (wanted.empty() || wanted.count(test.name)) waiting.push_back(&test);
    std::map<pid_t, Running> running;
    int failed = 0;
    for (auto next = waiting.begin(); next != waiting.end() || !running.empty();) {
        if (next != waiting.end() && running.size() < std::max(1u, std::thread::hardware_concurrency())) {
            Running begun{*next++, tmpfile(), now()};
            CHECK(begun.output != nullptr);
            running[start(*begun.test, begun.output)] = begun;
            continue;
        }
        int status;
        pid_t pid = waitpid(-1, &status, 0);
        failed += end(running.at(pid), pid, status);
        running.erase(pid);
    }
    return failed != 0;
}
