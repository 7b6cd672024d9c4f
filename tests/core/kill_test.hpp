// Kills a process after every change that an operation makes to the arena: a child does the operation under
// ptrace, in single steps where it writes to the arena, and is killed after its first change. Then the next
// child is killed after its second change, and so on to the last.
#pragma once

#include <functional>

#include "core_test.hpp"

namespace dragon {

struct Operation {
    std::function<void()> prepare;                        // in the parent
    std::function<void()> prepare_child = [] {};          // in the child, before the operation
    std::function<void()> run;                            // in the child, which is killed during it
    std::function<void()> while_stopped = [] {};          // in the parent, before the stopped child is killed
    std::function<void(bool)> before_reap = [](bool) {};  // in the parent, after the child was killed
    std::function<void(bool)> check;  // after the reap; true: the child had completed the operation
};

void kill_after_every_change(const std::string& name, const Operation& o);

// The channel that the operations of a test change.
inline Attached<Channel> tested_channel;

// Checks that the channel holds so many whole messages, and that it still works. Releases it.
void check_tested_channel(uint64_t at_least, uint64_t at_most);

}  // namespace dragon
