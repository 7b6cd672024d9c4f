// A process that is not our child: when it ends, and signals to it.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace dragon {

// What a look for a process found. Unknown: it could not be looked for, as without a free descriptor or where
// /proc is not mounted, and there may be one.
enum class Look { Found, Gone, Unknown };

// State letter and start time of a process. A zombie is Found.
Look process_stat(pid_t pid, char& state, uint64_t& start_time);

// Whether exactly that process is known to have ended; a start time of 0 is any.
bool known_to_have_ended(pid_t pid, uint64_t start_time);

// The parent of a process; 0 where there is none.
pid_t parent_of(pid_t pid);

// A descriptor that becomes readable when the process ends, closed on exec. Kernels older than Linux 5.3, and
// containers that do not let it through, have no pidfd_open(): there a thread looks every few milliseconds.
// Throws SystemFailure, with ESRCH where there is no such process. Not to be called by several threads at
// once.
int open_process(pid_t pid);

// Send a signal to the process that the descriptor was opened for. Throws SystemFailure.
void signal_process(int descriptor, pid_t pid, int signal);

}  // namespace dragon
