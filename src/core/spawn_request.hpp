#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "arena.hpp"

namespace dragon {

// A start request: views of its parts in the encoded data. infrastructure/messages.py describes them.
struct SpawnRequest {
    struct Output {
        std::string_view kind = "inherit", path, channel;
    };
    struct Name {
        std::string_view encoded;
        Handle handle;
        Role role = Role::Plain;
    };

    // Throws Malformed.
    static SpawnRequest parse(std::string_view data);

    uint64_t puid = 0, group = 0, parent = 0, payload_size = 0;
    std::string_view name, entry, payload, executable, folder;
    // Encoded.
    std::string_view main, surroundings, arguments, environment, descriptor_variables, cpus, limits, signals;
    Name record, payload_in;
    std::vector<Name> attached;
    std::array<Output, 3> streams;
    int umask = -1;
    bool leave_running = false;
};

// The numbers of an encoded array; none for an empty string. Throws Malformed.
std::vector<int64_t> numbers_in(std::string_view encoded);

}  // namespace dragon
