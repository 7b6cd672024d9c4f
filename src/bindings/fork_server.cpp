#include "../core/fork_server.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "common.hpp"
#include "fork_server.hpp"

namespace dragon::py {

namespace {

const char* next(ForkServer& server) {
    for (;;) {
        switch (server.next()) {
            case Next::Agent:
                return "agent";
            case Next::Request:
                return "request";
            case Next::Refused:
                return "refused";
            case Next::Child:
                return "child";
            case Next::End:
                return "end";
            case Next::Wait: {
                nb::gil_scoped_release released;
                server.wait();
            }
        }
    }
}

nb::bytes bytes(std::string_view data) { return nb::bytes(data.data(), data.size()); }

nb::str text(std::string_view data) { return nb::str(data.data(), data.size()); }

nb::dict environment(const SpawnRequest& request) {
    nb::dict changes;
    if (request.environment.empty()) return changes;
    MsgpackReader in(request.environment);
    for (uint32_t pairs = in.map(); pairs; --pairs) {
        nb::str name = text(in.text());
        changes[name] = in.nil() ? nb::object(nb::none()) : text(in.text());
    }
    return changes;
}

nb::list descriptor_variables(const SpawnRequest& request) {
    nb::list names;
    if (request.descriptor_variables.empty()) return names;
    MsgpackReader in(request.descriptor_variables);
    for (uint32_t left = in.array(); left; --left) names.append(text(in.text()));
    return names;
}

nb::object payload_in(const SpawnRequest& request) {
    auto& [encoded, handle, role] = request.payload_in;
    if (encoded.empty()) return nb::none();
    return nb::make_tuple(handle.offset, handle.generation,
                          static_cast<uint32_t>(role) | node_index << kNodeShift);
}

}  // namespace

void bind_fork_server(nb::module_& m) {
    auto view = [](std::string_view SpawnRequest::* part) {
        return [part](const SpawnRequest& request) { return text(request.*part); };
    };
    nb::class_<SpawnRequest>(m, "SpawnRequest")
        .def_ro("puid", &SpawnRequest::puid)
        .def_ro("group", &SpawnRequest::group)
        .def_ro("parent", &SpawnRequest::parent)
        .def_prop_ro("name", view(&SpawnRequest::name))
        .def_prop_ro("entry", view(&SpawnRequest::entry))
        .def_prop_ro("payload", [](const SpawnRequest& request) { return bytes(request.payload); })
        .def_prop_ro("payload_in", &payload_in)
        .def_ro("payload_size", &SpawnRequest::payload_size)
        .def_prop_ro("environment", &environment)
        .def_prop_ro("descriptor_variables", &descriptor_variables);
    nb::class_<ForkServer>(m, "ForkServer")
        .def(nb::init<int, int, int>(), nb::arg("requests"), nb::arg("agent"), nb::arg("signals"))
        .def("set_output", &ForkServer::set_output, nb::arg("label"), nb::arg("forwards"))
        .def("next", &next)
        .def("data", [](const ForkServer& server) { return bytes(server.data()); })
        .def("request", &ForkServer::request, nb::rv_policy::reference_internal)
        .def("descriptors", &ForkServer::descriptors)
        .def("slot", &ForkServer::slot)
        .def("why", &ForkServer::why)
        .def("started", &ForkServer::started, nb::arg("pid"), nb::arg("forked"))
        .def("failed", &ForkServer::failed, nb::arg("error"), nb::arg("text"))
        .def("fork_alike", &ForkServer::fork_alike)
        .def("synchronise", &ForkServer::synchronise)
        .def("reap", &ForkServer::reap)
        .def("running", &ForkServer::running)
        .def("enter_child", &ForkServer::enter_child);
}

}  // namespace dragon::py
