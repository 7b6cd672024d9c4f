// Ends a run, in the process that owns it: asks the agent to end and waits for it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace dragon {

struct RunEnd {
    pid_t agent;
    std::string address;               // the path of the agent's socket
    std::string request;               // the framed message that asks the agent to end the run
    std::string busy;                  // a file that exists while the ending agent still writes checkpoints
    std::vector<std::string> folders;  // to remove if the agent could not
    double within;                     // seconds that the agent has, while it does not write checkpoints
};

// Returns when the agent has ended; kills it if it does not end in time. Needs no Python.
void end_run(const RunEnd& run);

}  // namespace dragon
