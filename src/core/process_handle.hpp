// Watches and signals processes that are not children of this one.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace dragon {

// The result of looking for a process. Unknown: the look failed, for instance without a free descriptor or if
// /proc is not mounted, and the process may exist.
enum class Look { Found, Gone, Unknown };

// State letter and start time of a process. A zombie is Found.
Look process_stat(pid_t pid, char& state, uint64_t& start_time);

// Whether the process with this id and start time is known to have ended. Start time 0: any.
bool known_to_have_ended(pid_t pid, uint64_t start_time);

// The parent of a process; 0 if there is no such process.
pid_t parent_of(pid_t pid);

// Returns a descriptor, closed on exec, that becomes readable when the process ends. Kernels older than Linux
// 5.3, and containers that forbid the call, have no pidfd_open(): there a thread looks every few
// milliseconds. Throws SystemFailure, with ESRCH if there is no such process. Must not be called by several
// threads at once.
int open_process(pid_t pid);

// Sends a signal to the process for which the descriptor was opened. Throws SystemFailure.
void signal_process(int descriptor, pid_t pid, int signal);

}  // namespace dragon
