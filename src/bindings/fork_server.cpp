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
                WithoutGil without;
                if (!server.wait()) continue;
            }
                return "idle";
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

nb::list texts(std::string_view encoded) {
    nb::list result;
    if (encoded.empty()) return result;
    MsgpackReader in(encoded);
    for (uint32_t left = in.array(); left; --left) result.append(text(in.text()));
    return result;
}

// The kind and the name of the main program; None if there is none.
nb::object main_program(const SpawnRequest& request) {
    if (request.main.empty() || MsgpackReader(request.main).nil()) return nb::none();
    return nb::tuple(texts(request.main));
}

// What Python needs to start the process of a request, in the order of Asked in agent/processes/zygote.py.
nb::tuple fields(const ForkServer& server) {
    const SpawnRequest& request = server.request();
    std::string_view surroundings;
    if (!request.surroundings.empty()) surroundings = MsgpackReader(request.surroundings).text();
    nb::list signals;
    for (int64_t set : numbers_in(request.signals)) signals.append(static_cast<uint64_t>(set));
    return nb::make_tuple(text(request.name), request.puid, request.parent, request.group,
                          main_program(request), bytes(surroundings), text(request.executable),
                          texts(request.arguments), text(request.folder), environment(request),
                          numbers_in(request.cpus), numbers_in(request.limits), signals,
                          texts(request.descriptor_variables));
}

// The bytes of the payload, or the name of the words that hold them and their number of bytes.
nb::object payload(const SpawnRequest& request) {
    auto& [encoded, handle, role] = request.payload_in;
    if (encoded.empty()) return bytes(request.payload);
    auto name = nb::make_tuple(handle.offset, handle.generation,
                               static_cast<uint32_t>(role) | node_index << kNodeShift);
    return nb::make_tuple(name, request.payload_size);
}

std::string_view utf8(nb::handle text) {
    Py_ssize_t size;
    const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (!data) nb::raise_python_error();
    return {data, static_cast<size_t>(size)};
}

void pack(MsgpackWriter& out, nb::handle value) {
    if (value.is_none())
        out.nil();
    else if (nb::isinstance<nb::bool_>(value))
        out.truth(nb::cast<bool>(value));
    else if (nb::isinstance<nb::int_>(value))
        PyObject_RichCompareBool(value.ptr(), nb::int_(0).ptr(), Py_LT)
            ? out.signed_number(nb::cast<int64_t>(value))
            : out.number(nb::cast<uint64_t>(value));
    else if (nb::isinstance<nb::str>(value))
        out.text(utf8(value));
    else if (nb::isinstance<nb::bytes>(value)) {
        auto data = nb::borrow<nb::bytes>(value);
        out.bytes({data.c_str(), data.size()});
    } else if (nb::isinstance<nb::dict>(value)) {
        auto pairs = nb::borrow<nb::dict>(value);
        out.map(static_cast<uint32_t>(pairs.size()));
        for (auto [key, one] : pairs) pack(out.text(utf8(key)), one);
    } else if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
        out.array(static_cast<uint32_t>(nb::len(value)));
        for (nb::handle one : value) pack(out, one);
    } else {
        throw nb::type_error("it is no value of a message");
    }
}

// Returns everything that Python needs at once: each attribute that it would look up writes to one or two
// more pages.
nb::tuple enter_child(ForkServer& server) {
    const SpawnRequest& request = server.request();
    std::vector<int> descriptors = server.descriptors();
    server.enter_child();
    return nb::make_tuple(request.puid, text(request.name), request.parent, request.group,
                          environment(request), text(request.entry), payload(request),
                          texts(request.descriptor_variables), numbers_in(request.signals),
                          std::vector<int>(descriptors.begin() + 3, descriptors.end()));
}

}  // namespace

void bind_fork_server(nb::module_& m) {
    m.def(
        "pack",
        [](nb::handle value) {
            std::string out;
            MsgpackWriter writer(out);
            pack(writer, value);
            return bytes(out);
        },
        nb::arg("value").none(),
        "Encode None, numbers, text, bytes, and lists and dicts of these, by MessagePack.");
    nb::class_<ForkServer>(m, "ForkServer")
        .def(nb::init<int, int, int>(), nb::arg("requests"), nb::arg("agent"), nb::arg("signals"))
        .def("set_output", &ForkServer::set_output, nb::arg("label"), nb::arg("forwards"))
        .def("next", &next)
        .def("request", [](const ForkServer& server) { return bytes(server.data()); })
        .def("fields", &fields)
        .def("descriptors", &ForkServer::descriptors)
        .def("slot", &ForkServer::slot)
        .def("why", &ForkServer::why)
        .def("started", &ForkServer::started, nb::arg("pid"), nb::arg("forked"))
        .def("failed", &ForkServer::failed, nb::arg("error"), nb::arg("text"))
        .def("fork_alike", &ForkServer::fork_alike)
        .def("synchronise", &ForkServer::synchronise)
        .def("await_idle", &ForkServer::await_idle)
        .def("reap", &ForkServer::reap)
        .def("disown", &ForkServer::disown)
        .def("running", &ForkServer::running)
        .def("enter_child", &enter_child);
}

}  // namespace dragon::py
