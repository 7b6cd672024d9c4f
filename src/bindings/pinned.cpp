#include "common.hpp"

namespace dragon::py {

namespace {

// Memory of somebody else's to look into, and what keeps it there.
struct Pinned {
    nb::object memory;
    nb::object owner;
};

int pinned_buffer(PyObject* self, Py_buffer* view, int flags) {
    Py_buffer memory;
    if (PyObject_GetBuffer(self_of<Pinned>(self).memory.ptr(), &memory, PyBUF_SIMPLE) < 0) return -1;
    int result = PyBuffer_FillInfo(view, self, memory.buf, memory.len, 1, flags);
    PyBuffer_Release(&memory);
    return result;
}

}  // namespace

void bind_pinned(nb::module_& m) {
    static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(pinned_buffer)}, {0, nullptr}};
    nb::class_<Pinned>(m, "Pinned", nb::type_slots(slots),
                       "A buffer that may only be read, and lives as long as somebody looks into it.")
        .def(
            "__init__",
            [](Pinned* self, nb::object memory, nb::object owner) {
                new (self) Pinned{std::move(memory), std::move(owner)};
            },
            nb::arg("memory"), nb::arg("owner"));
}

}  // namespace dragon::py
