// Two wires in one process: what they send each other while connections break, and what a stranger's bytes
// do.
#include <fcntl.h>
#include <sys/socket.h>

#include <random>
#include <thread>

#include "../../src/wire/parcels.hpp"
#include "../../src/wire/wire.hpp"
#include "core_test.hpp"

namespace dragon {
namespace {

using wire::Name;
using wire::Node;
using wire::Payload;
using wire::Report;
using wire::Wire;

// A wire with its thread. Both of a pair use the arena of this process; names say which of them an object
// belongs to.
struct End {
    End(Node node, int bell) : wire(node, bell), thread([this] { wire.loop.run(); }) {}
    template <class F>
    auto locked(F f) {
        std::lock_guard lock(wire.loop.mutex);
        struct Settle {
            Wire& w;
            ~Settle() noexcept(false) { w.settle(); }
        } settle{wire};
        return f(wire);
    }
    ~End() {
        locked([](Wire& w) { w.sessions.abort_all(); });
        wire.loop.stop();
        thread.join();
    }
    void take() {
        for (Report& e : locked([](Wire& w) { return w.events.take(); }))
            if (e.kind == Report::Kind::Control)
                heard.push_back(e.text + ":" + std::to_string(e.payload.size));
    }
    Wire wire;
    std::thread thread;
    std::vector<std::string> heard;
};

struct Pair {
    // `rung` is the one that processes notify of changes.
    explicit Pair(int rung = 0) {
        CHECK(mkdtemp(folder));
        set_bell_folder(folder);
        first = std::make_unique<End>(0, rung == 0 ? open_agent_bell() : -1);
        second = std::make_unique<End>(1, rung == 1 ? open_agent_bell() : -1);
    }
    ~Pair() {
        first.reset();
        second.reset();
        CHECK(unlink((std::string(folder) + "/bell-agent").c_str()) == 0 && rmdir(folder) == 0);
    }
    // Connects them. Each connection has keys of its own.
    void connect(bool plain = false) {
        int fds[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
        std::string one(wire::kKey, static_cast<char>(++keys)), other(wire::kKey, static_cast<char>(++keys));
        first->locked(
            [&](Wire& w) { return w.sessions.add({fds[0], 1, one, other, "", plain, false, false}); });
        second->locked(
            [&](Wire& w) { return w.sessions.add({fds[1], 0, other, one, "", plain, false, false}); });
    }
    void cut(End& end) {
        end.locked([](Wire& w) { w.sessions.abort_all(); });
    }
    char folder[32] = "/tmp/dragon-core-tests-XXXXXX";
    int keys = 0;
    std::unique_ptr<End> first, second;
};

void wait_until(auto condition) {
    for (Nanoseconds end = now() + 20 * kSecond; !condition(); usleep(200)) CHECK(now() < end);
}

bool has_crypto() { return wire::find_crypto(); }

TEST(frames_are_handled_once_and_in_order_while_connections_break) {
    if (!has_crypto()) exit(kExitSkipped);
    new_arena(512 * kMiB);
    Pair pair;
    std::mt19937 random(7);
    std::vector<std::string> sent[2];
    const size_t sizes[] = {0, 1, 300, 32 * 1024, 32 * 1024 + 1, 64 * 1024, 300'000, 1 << 20};
    End* ends[] = {pair.first.get(), pair.second.get()};
    for (int step = 0; step < 1500; ++step) {
        unsigned choice = random() % 40;
        if (choice < 36) {
            int side = static_cast<int>(random() % 2);
            size_t size = sizes[random() % 8];
            std::string text(random() % 50 == 0 ? 40'000 : 4, 'x');
            text += std::to_string(step);
            sent[side].push_back(text + ":" + std::to_string(size));
            ends[side]->locked([&](Wire& w) {
                return w.send(static_cast<Node>(1 - side), text, Payload::of(std::string(size, 'p')), false);
            });
        } else if (choice < 38) {
            pair.cut(*ends[random() % 2]);
        } else {
            pair.connect(random() % 2);
        }
    }
    pair.connect();
    wait_until([&] {
        pair.first->take();
        pair.second->take();
        return pair.first->heard.size() >= sent[1].size() && pair.second->heard.size() >= sent[0].size();
    });
    CHECK(pair.second->heard == sent[0] && pair.first->heard == sent[1]);
    wait_until([&] { return !pair.first->locked([](Wire& w) { return w.sessions.has_unacknowledged(1); }); });
}

TEST(a_new_epoch_loses_what_was_in_flight_except_kept_frames) {
    if (!has_crypto()) exit(kExitSkipped);
    new_arena();
    Pair pair;
    pair.first->locked([](Wire& w) {
        w.send(1, "lost", {}, false);
        w.send(1, "kept", {}, true);
        w.end_epoch(1, "a test", false);
        w.send(1, "later", {}, false);
    });
    pair.connect();
    wait_until([&] { return pair.second->take(), pair.second->heard.size() == 2; });
    CHECK(pair.second->heard == (std::vector<std::string>{"kept:0", "later:0"}));
    // The other side may not have got the acknowledgement: a kept frame is sent again, and handled once.
    pair.first->locked([](Wire& w) {
        w.send(1, "kept too", {}, true);
        w.end_epoch(1, "a test", false);
        w.end_epoch(1, "a test", false);
    });
    wait_until([&] { return pair.second->take(), pair.second->heard.size() == 3; });
    CHECK(pair.second->heard.back() == "kept too:0");
}

// Puts into the channel behind an outbox, waiting for room.
Status put_in_outbox(Name outbox, uint64_t value, size_t size) {
    std::string data(std::max(size, sizeof value), 'd');
    memcpy(data.data(), &value, sizeof value);
    Arena& a = arena();
    auto& channel = *a.at<Channel>(outbox.offset);
    for (;;) {
        Status status = wire::put_message(a, channel, 7, {data.data(), data.size(), nullptr, nullptr});
        if (status != Status::Timeout && status != Status::Busy) return status;
        usleep(100);
    }
}

TEST(messages_of_outboxes_arrive_once_and_in_order_while_connections_break) {
    if (!has_crypto()) exit(kExitSkipped);
    Arena& a = new_arena(512 * kMiB);
    Pair pair;
    pair.connect();
    auto channel = new_channel();
    Name there{channel.handle.offset, channel.handle.generation, 1u << kNodeShift};
    Name outbox = pair.first->locked([&](Wire& w) { return w.outboxes.open(99, there, false, w.own_node); });
    constexpr uint64_t kMessages = 4000;
    std::thread writer([&] {
        std::mt19937 random(3);
        for (uint64_t i = 0; i < kMessages; ++i)
            CHECK(put_in_outbox(outbox, i, random() % 20 == 0 ? 100'000 : random() % 3000) == Status::Ok);
    });
    std::thread breaker([&] {
        for (int i = 0; i < 20; ++i) {
            usleep(5000);
            pair.cut(i % 2 ? *pair.first : *pair.second);
            pair.connect();
        }
    });
    Message message;
    for (uint64_t i = 0; i < kMessages; ++i) {
        wait_until([&] { return channel->get(a, message, 0) == Status::Ok; });
        const char* data = message.block ? a.at<char>(message.block) + kDataStart : message.data;
        uint64_t value;
        memcpy(&value, data, sizeof value);
        CHECK(value == i && message.label.kind == 7);
        if (message.block) a.free(message.block);
    }
    writer.join();
    breaker.join();
    channel.release();
}

TEST(a_full_bell_loses_no_message) {
    if (!has_crypto()) exit(kExitSkipped);
    Arena& a = new_arena();
    Pair pair;
    pair.connect();
    auto channel = new_channel();
    Name there{channel.handle.offset, channel.handle.generation, 1u << kNodeShift};
    Name outbox = pair.first->locked([&](Wire& w) { return w.outboxes.open(99, there, false, w.own_node); });
    pair.first->locked([&](Wire&) {  // whose thread does not read meanwhile
        Offset other = 64;
        while (write(open_agent_bell(), &other, sizeof other) > 0);
        CHECK(put_in_outbox(outbox, 1, 8) == Status::Ok);
    });
    Message message;
    wait_until([&] { return channel->get(a, message, 0) == Status::Ok; });
    channel.release();
}

TEST(a_channel_that_is_gone_destroys_its_outbox) {
    if (!has_crypto()) exit(kExitSkipped);
    new_arena();
    Pair pair;
    pair.connect();
    auto channel = new_channel();
    Name there{channel.handle.offset, channel.handle.generation, 1u << kNodeShift};
    channel.release();
    Name outbox = pair.first->locked([&](Wire& w) { return w.outboxes.open(99, there, false, w.own_node); });
    wait_until([&] {
        return !arena().exists(outbox.handle()) || arena().at<Channel>(outbox.offset)->destroyed.load();
    });
}

TEST(whoever_watches_a_channel_learns_each_change_before_what_is_sent_later) {
    if (!has_crypto()) exit(kExitSkipped);
    Arena& a = new_arena();
    Pair pair(1);
    pair.connect();
    auto channel = new_channel();
    Name there{channel.handle.offset, channel.handle.generation, 1u << kNodeShift};
    CHECK(pair.first->locked([&](Wire& w) { return w.proxies.open(99, there); }).offset == 0);
    auto proxy_name = [&] { return pair.first->locked([&](Wire& w) { return w.proxies.open(99, there); }); };
    wait_until([&] { return proxy_name().offset != 0; });
    auto& proxy = *a.at<Channel>(proxy_name().offset);
    Message message;
    for (int i = 0; i < 200; ++i) {
        CHECK(channel->put_small(a, {1, 0, 0}, "", 0) == Status::Ok);
        wait_until([&] { return proxy.readable(); });
        CHECK(channel->get(a, message, 0) == Status::Ok);
        pair.second->locked([](Wire& w) { return w.send(0, "later", {}, false); });
        size_t heard = pair.first->heard.size();
        wait_until([&] { return pair.first->take(), pair.first->heard.size() > heard; });
        CHECK(!proxy.readable());
    }
    channel.release();
}

void lose_answers(bool through_two_epochs) {
    Arena& a = new_arena();
    Pair pair(1);
    pair.connect();
    Attached<Lock> lock{a.create<Lock>(Kind::Lock, Role::Plain, sizeof(Lock), false), Role::Plain};
    auto channel = new_channel();
    CHECK(channel->put_small(a, {1, 4, 0}, "data", 0) == Status::Ok);
    wire::Operation acquire, get;
    acquire.what = wire::Do::LockAcquire;
    acquire.object = {lock.handle.offset, lock.handle.generation, 1u << kNodeShift};
    get.what = wire::Do::ChannelGet;
    get.object = {channel.handle.offset, channel.handle.generation, 1u << kNodeShift};
    pair.first->locked([&](Wire& w) {
        w.sessions.block(1);  // it does not hear the answers
        w.requests.set_nodes(2);
        w.requests.ask(acquire, {});
        return w.requests.ask(get, {});
    });
    wait_until([&] { return lock->owner() != 0 && channel->size() == 0; });
    pair.cut(*pair.first);
    pair.first->locked([](Wire& w) {
        w.sessions.unblock(1);
        w.end_epoch(1, "a test", false);
    });
    if (through_two_epochs) {  // the connection of the second one breaks before the other agent has heard of
                               // it
        int fds[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
        std::string key(wire::kKey, 'k');
        pair.first->locked(
            [&](Wire& w) { return w.sessions.add({fds[0], 1, key, key, "", false, false, false}); });
        pair.cut(*pair.first);
        close(fds[1]);
        pair.first->locked([](Wire& w) { w.end_epoch(1, "a test", false); });
    }
    pair.connect();
    wait_until([&] { return lock->owner() == 0 && channel->size() == 1; });
    lock.release();
    channel.release();
}

TEST(what_was_done_is_undone_if_its_answer_is_lost_with_the_connection) {
    if (!has_crypto()) exit(kExitSkipped);
    lose_answers(false);
}

TEST(what_was_done_is_undone_also_if_the_epoch_after_it_ends_unheard) {
    if (!has_crypto()) exit(kExitSkipped);
    lose_answers(true);
}

TEST(what_is_acknowledged_over_a_connection_that_breaks_is_acknowledged_over_the_next_one) {
    if (!has_crypto()) exit(kExitSkipped);
    new_arena();
    Pair pair;
    pair.connect();
    pair.connect();
    pair.first->locked([](Wire& w) {
        w.sessions.block(1);  // it does not read the acknowledgement
        w.send(1, "x", {}, false);
    });
    wait_until([&] { return pair.second->take(), !pair.second->heard.empty(); });
    usleep(200'000);  // the other one acknowledges within 50 ms
    pair.first->locked([](Wire& w) {
        auto all = w.sessions.connections();
        w.sessions.abort(*std::min_element(all.begin(), all.end()), "a test");
        w.sessions.unblock(1);
    });
    wait_until([&] { return !pair.first->locked([](Wire& w) { return w.sessions.has_unacknowledged(1); }); });
}

TEST(bytes_of_a_stranger_do_no_harm) {
    if (!has_crypto()) exit(kExitSkipped);
    new_arena();
    Pair pair;
    std::mt19937 random(11);
    for (int i = 0; i < 300; ++i) {
        int fds[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
        std::string key(wire::kKey, 'k');
        auto seal = wire::make_seal(key, true);
        pair.second->locked(
            [&](Wire& w) { return w.sessions.add({fds[1], 0, key, key, "", false, false, false}); });
        // Half of them know the key, and seal frames of random fields.
        for (int n = 0; n < 4; ++n) {
            std::string plain(random() % 300, 0);
            for (char& c : plain) c = static_cast<char>(random() % 4 ? random() % 3 : random());
            std::string record(sizeof(uint32_t) + plain.size() + wire::kTag, 0);
            auto size = static_cast<uint32_t>(record.size() - sizeof(uint32_t));
            memcpy(record.data(), &size, sizeof size);
            if (i % 2)
                seal->seal(record.data() + sizeof size, plain.data(), plain.size());
            else
                for (char& c : record) c = static_cast<char>(random());
            if (send(fds[0], record.data(), record.size(), MSG_NOSIGNAL) < 0) break;
        }
        close(fds[0]);
    }
    pair.connect();
    pair.first->locked([](Wire& w) {
        w.end_epoch(1, "a test", false);  // beyond what a stranger may have begun
        for (int i = 0; i < 64; ++i) w.sessions.end_epoch(1, "a test");
        return w.send(1, "still here", {}, false);
    });
}

}  // namespace
}  // namespace dragon
