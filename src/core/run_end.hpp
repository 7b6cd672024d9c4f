// The end of a run, as the process does it that owns the run: the agent is asked to end, and waited for.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace dragon {

struct RunEnd {
    pid_t agent;
    std::string address;               // the path of the agent's socket
    std::string request;               // what asks the agent to end the run, framed
    std::string busy;                  // a file that exists while an agent that ends still writes checkpoints
    std::vector<std::string> folders;  // what must not stay behind if the agent could not remove it
};

// Returns when the agent has ended; kills it where it does not end in time. No Python is needed.
void end_run(const RunEnd& run);

}  // namespace dragon
