// Processes are killed after every change that an operation makes: memory, references, slots, locks, reap().
#include "kill_test.hpp"

namespace dragon {
namespace {

constexpr pid_t kNoProcess = 1 << 23;  // larger than any process id

// Slots that a killed child has reserved and not filled stay reserved. Fills them, and reaps them.
void reap_reserved_slots() {
    SlotInfo slots[64];
    for (size_t i = 0, n = arena().processes(slots, 64); i < n; ++i)
        if (slots[i].pid == 0) arena().fill_slot(slots[i].owner, kNoProcess);
    arena().reap_dead();
}

TEST(kill_during_allocate_and_free) {
    Arena& a = new_arena();
    static Offset block;
    for (size_t size : {size_t{200}, size_t{8000}, kMiB}) {
        Operation o;
        o.prepare = [&, size] { a.free(a.allocate(size)); };
        o.run = [size] { arena().allocate(size); };
        o.check = [](bool) {};
        kill_after_every_change("allocate of " + std::to_string(size), o);
        o.prepare_child = [size] { block = arena().allocate(size); };
        o.run = [] { arena().free(block); };
        kill_after_every_change("free of " + std::to_string(size), o);
    }
}

TEST(kill_during_carve_and_trim) {
    Arena& a = new_arena();
    uint64_t committed = 0;
    static std::vector<Offset> held;
    Operation o;
    o.prepare = [&] {
        a.trim();
        committed = a.usage().committed;
    };
    o.run = [] { arena().allocate(kMiB); };
    o.check = [&](bool) {
        a.trim();
        CHECK(a.usage().committed == committed);
    };
    kill_after_every_change("allocate of a cold block", o);
    o.prepare = [&] {
        held = {a.allocate(kMiB), a.allocate(kMiB)};
        for (Offset b : held) a.free(b);
    };
    o.run = [] { arena().trim(2 * kMiB); };
    kill_after_every_change("trim", o);

    // No block of the size class is free.
    o.prepare = [&] {
        held.clear();
        do held.push_back(a.allocate(512));
        while (a.has_warm(512));
    };
    o.run = [] { arena().allocate(512); };
    o.check = [&](bool) {
        for (Offset b : held) a.free(b);
    };
    kill_after_every_change("allocate of a new block", o);
}

TEST(kill_during_reference_changes) {
    Arena& a = new_arena();
    Operation o;
    o.prepare = [] {};
    o.run = [] { new_channel(); };
    o.check = [](bool) {};
    kill_after_every_change("create", o);

    o.prepare = [] { tested_channel = new_channel(0, true, Role::Reader); };
    o.run = [] { arena().attach(tested_channel.handle, Kind::Channel, Role::Writer); };
    o.check = [&](bool) {
        CHECK(tested_channel->references == 1 && tested_channel->ends[0] == 1 &&
              tested_channel->ends[1] == 0);
        tested_channel.release();
        CHECK(!a.exists(tested_channel.handle));
    };
    kill_after_every_change("attach", o);

    o.prepare_child = [] { arena().attach(tested_channel.handle, Kind::Channel, Role::Writer); };
    o.run = [] { arena().release(tested_channel.handle, Role::Writer); };
    kill_after_every_change("release", o);
    o.run = [] { arena().send(tested_channel.handle, Role::Writer); };
    kill_after_every_change("send", o);
    o.run = [] { arena().leave(); };
    kill_after_every_change("leave", o);

    o.prepare = [&] {
        tested_channel = new_channel(0, true, Role::Reader);
        a.send(tested_channel.handle, Role::Writer);
    };
    o.prepare_child = [] {};
    o.run = [] { arena().attach(tested_channel.handle, Kind::Channel, Role::Writer); };
    o.check = [&](bool) {
        if (tested_channel->references >> 32) {
            CHECK(try_attach(tested_channel.handle, Kind::Channel, Role::Writer));
            a.release(tested_channel.handle, Role::Writer);
        }
        CHECK(tested_channel->references == 1 && tested_channel->ends[1] == 0);
        tested_channel.release();
    };
    kill_after_every_change("attach of a sent object", o);
}

TEST(kill_during_last_release_and_attach_for) {
    new_arena();
    Operation o;
    o.prepare = [] {};
    o.prepare_child = [] {
        tested_channel = new_channel();
        for (uint64_t i = 1; i <= 3; ++i) put(*tested_channel, i, i == 2 ? 1000 : 64);
        CHECK(get_or_fail(*tested_channel) == 1);
    };
    o.run = [] { tested_channel.release(); };
    o.check = [](bool) {};
    kill_after_every_change("last release", o);

    static OwnerId slot;
    o.prepare = [] {};
    o.prepare_child = [] {
        tested_channel = new_channel();
        slot = arena().reserve_slot();
    };
    o.run = [] {
        arena().attach_for(slot, tested_channel.handle, Role::Plain);
        arena().fill_slot(slot, kNoProcess);
    };
    o.check = [](bool) { reap_reserved_slots(); };
    kill_after_every_change("attach_for", o);
}

TEST(kill_during_lock_and_condition_operations) {
    Arena& a = new_arena();
    auto lock = new_lock(true);
    auto condition = new_condition();
    Operation o;
    o.prepare = [] {};
    o.run = [&] {
        lock->acquire(arena().self(), 1, long_deadline());
        lock->release(arena().self(), 1);
    };
    o.check = [&](bool) {
        Status status = lock->acquire(a.self(), 1, long_deadline());
        CHECK(status == Status::Ok || status == Status::Recovered);
        CHECK(lock->count() == 1);
        CHECK(lock->release(a.self(), 1) == Lock::Release::Ok && lock->count() == 0);
    };
    kill_after_every_change("lock", o);

    static Offset mine;
    o.prepare = [&] { mine = condition->enter(a); };
    o.run = [&] {
        Offset waiter = condition->enter(arena());
        condition->leave(arena(), waiter);
    };
    o.check = [&](bool) {
        CHECK(condition->notify(a, 5) == 1);
        CHECK(condition->leave(a, mine));
    };
    kill_after_every_change("wait on a condition", o);
    o.run = [&] { condition->notify(arena(), 1); };
    o.check = [&](bool done) {
        CHECK(condition->notify(a, 1) == 1 || condition->sleep(a, mine, 0) == Status::Ok);
        CHECK(condition->leave(a, mine) || !done);
    };
    kill_after_every_change("notify", o);
}

TEST(kill_during_slot_reservation) {
    Arena& a = new_arena();
    Operation o;
    o.prepare = [] {};
    o.run = [] {
        OwnerId slot = arena().reserve_slot();
        arena().fill_slot(slot, kNoProcess);
    };
    o.check = [&](bool) {
        reap_reserved_slots();
        SlotInfo slots[64];
        CHECK(a.processes(slots, 64) == 1);
    };
    kill_after_every_change("reserve_slot", o);
}

TEST(kill_during_reap) {
    Arena& a = new_arena();
    static pid_t dead;
    Operation o;
    o.prepare = [&] {
        tested_channel = new_channel();
        dead = run_and_kill_child([] {
            CHECK(try_attach(tested_channel.handle));
            auto own = new_channel();
            put(*own, 1);
            put(*own, 2, 1000);
            arena().send(own.handle, Role::Plain);
            arena().allocate(5000);
            // The channel has a message of the process that is killed.
            put(*tested_channel, 3);
        });
    };
    o.run = [] { arena().reap(dead); };
    o.check = [&](bool) {
        CHECK(tested_channel->references == 1);
        check_tested_channel(1, 1);
        CHECK(!a.reap(dead));
    };
    kill_after_every_change("reap", o);
}

}  // namespace
}  // namespace dragon
