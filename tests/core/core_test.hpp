// What the tests of the core share: registration of tests, CHECK, and helpers that make objects, send numbers
// through channels, and fork and kill processes. These tests need no Python.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../../src/core/channel.hpp"
#include "../../src/core/layout.hpp"
#include "../../src/core/sync.hpp"

#define CHECK(condition) \
    ((condition) ? static_cast<void>(0) : dragon::fail_check(__FILE__, __LINE__, #condition))

// Defines a test, which runs in a process of its own and makes an arena of its own. A test whose macro is
// LONG_TEST begins before the others.
#define TEST(name) REGISTER_TEST(name, false)
#define LONG_TEST(name) REGISTER_TEST(name, true)
#define REGISTER_TEST(name, is_long)                                                    \
    static void name();                                                                 \
    static const dragon::TestRegistration registration_of_##name(#name, name, is_long); \
    static void name()

namespace dragon {

struct TestRegistration {
    TestRegistration(const char* name, void (*run)(), bool is_long);
};

inline constexpr int kExitSkipped = 77;
inline constexpr unsigned kTestTimeoutS = 120;
inline constexpr Nanoseconds kSecond = 1'000'000'000;

[[noreturn]] void fail_check(const char* file, int line, const char* condition);

// The deadline of an operation that has to succeed, and of one that has to time out.
inline Nanoseconds long_deadline() { return deadline_after(20); }
inline Nanoseconds short_deadline() { return deadline_after(0.02); }

// The new arena is that of this process from now on.
Arena& new_arena(uint64_t limit = 256 * kMiB);

// A handle of a shared object, and the role in which this process is attached to it.
template <class T>
struct Attached {
    Handle handle;
    Role role;
    T* operator->() const { return arena().at<T>(handle.offset); }
    T& operator*() const { return *arena().at<T>(handle.offset); }
    void release() const { arena().release(handle, role); }
};

Attached<Channel> new_channel(uint64_t capacity = 0, bool pipe = false, Role role = Role::Plain);
Attached<Lock> new_lock(bool recursive = false);
Attached<Condition> new_condition();
Attached<Semaphore> new_semaphore(uint32_t value, uint32_t bound);
Attached<Event> new_event();
Attached<Words> new_words(uint32_t count);

// Returns false if the object no longer exists.
bool try_attach(Handle handle, Kind kind = Kind::Channel, Role role = Role::Plain);

// Puts a message of `size` bytes that repeats one number. get() checks that all of it is the same number.
Status put(Channel& c, uint64_t number, size_t size = 64, Nanoseconds deadline = 0, Side side = Side::Back);
Status get(Channel& c, uint64_t& number, Nanoseconds deadline = 0);
uint64_t get_or_fail(Channel& c);

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

int wait_status(pid_t pid);
void join_child(pid_t pid);  // checks that the child exits with 0
void kill_self();            // with SIGKILL
// Forks a child that calls `f` and then kills itself.
template <class F>
pid_t run_and_kill_child(F f) {
    pid_t pid = fork_child([&] {
        f();
        kill_self();
    });
    CHECK(WIFSIGNALED(wait_status(pid)));
    return pid;
}

inline uint64_t block_count() { return arena().usage().blocks; }

// Checks that the lists of free blocks hold no block twice.
void check_free_lists();

}  // namespace dragon
