#include "spawn_request.hpp"

#include <algorithm>
#include <utility>

#include "msgpack.hpp"

namespace dragon {

namespace {

SpawnRequest::Name read_name(MsgpackReader& in) {
    SpawnRequest::Name name{in.any(), {}, Role::Plain};
    MsgpackReader parts(name.encoded);
    if (parts.array() != 3) throw Malformed("a name has three parts");
    name.handle.offset = parts.number();
    name.handle.generation = static_cast<uint32_t>(parts.number());
    name.role = role_of(static_cast<uint32_t>(parts.number()));
    return name;
}

std::array<SpawnRequest::Output, 3> read_streams(MsgpackReader& in) {
    std::array<SpawnRequest::Output, 3> streams;
    uint32_t count = in.array();
    if (count != 0 && count != 3) throw Malformed("there are three streams");
    for (uint32_t i = 0; i < count; ++i) {
        if (in.array() != 3) throw Malformed("a stream has three parts");
        streams[i].kind = in.text();
        streams[i].path = in.text();
        if (!in.nil()) streams[i].channel = in.any();
    }
    return streams;
}

}  // namespace

SpawnRequest SpawnRequest::parse(std::string_view data) {
    SpawnRequest r;
    const std::pair<std::string_view, uint64_t*> numbers[] = {
        {"puid", &r.puid}, {"group", &r.group}, {"parent", &r.parent}, {"payload_size", &r.payload_size}};
    const std::pair<std::string_view, std::string_view*> texts[] = {{"name", &r.name},
                                                                    {"entry", &r.entry},
                                                                    {"payload", &r.payload},
                                                                    {"executable", &r.executable},
                                                                    {"folder", &r.folder}};
    const std::pair<std::string_view, std::string_view*> encoded[] = {
        {"main", &r.main},
        {"surroundings", &r.surroundings},
        {"arguments", &r.arguments},
        {"environment", &r.environment},
        {"descriptor_variables", &r.descriptor_variables},
        {"cpus", &r.cpus},
        {"limits", &r.limits},
        {"signals", &r.signals}};
    MsgpackReader in(data);
    for (uint32_t pairs = in.map(); pairs; --pairs) {
        std::string_view key = in.text();
        auto found = [key](auto& table) {
            return std::find_if(std::begin(table), std::end(table),
                                [key](auto& row) { return row.first == key; });
        };
        if (auto row = found(numbers); row != std::end(numbers))
            *row->second = in.number();
        else if (auto row = found(texts); row != std::end(texts))
            *row->second = in.text();
        else if (auto row = found(encoded); row != std::end(encoded))
            *row->second = in.any();
        else if (key == "record")
            r.record = read_name(in);
        else if (key == "payload_in")
            r.payload_in = read_name(in);
        else if (key == "attached")
            for (uint32_t left = in.array(); left; --left) r.attached.push_back(read_name(in));
        else if (key == "streams")
            r.streams = read_streams(in);
        else if (key == "leave_running")
            r.leave_running = in.truth();
        else if (key == "umask")
            r.umask = static_cast<int>(in.number());
        else
            in.any();
    }
    if (!r.payload_in.encoded.empty()) r.attached.push_back(r.payload_in);
    return r;
}

std::vector<int64_t> numbers_in(std::string_view encoded) {
    std::vector<int64_t> numbers;
    if (encoded.empty()) return numbers;
    MsgpackReader in(encoded);
    for (uint32_t left = in.array(); left; --left) numbers.push_back(static_cast<int64_t>(in.number()));
    return numbers;
}

}  // namespace dragon
