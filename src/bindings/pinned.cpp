#include "common.hpp"

namespace dragon::py {

namespace {

// Memory that another object owns, and the object that keeps it allocated.
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

uintptr_t address_of(nb::handle memory) {
    Py_buffer view;
    if (PyObject_GetBuffer(memory.ptr(), &view, PyBUF_SIMPLE) < 0) throw nb::python_error();
    auto address = reinterpret_cast<uintptr_t>(view.buf);
    PyBuffer_Release(&view);
    return address;
}

}  // namespace

void bind_pinned(nb::module_& m) {
    static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(pinned_buffer)}, {0, nullptr}};
    nb::class_<Pinned>(m, "Pinned", nb::type_slots(slots),
                       "A read-only buffer that keeps `owner` alive as long as a view of it exists.")
        .def(
            "__init__",
            [](Pinned* self, nb::object memory, nb::object owner) {
                new (self) Pinned{std::move(memory), std::move(owner)};
            },
            nb::arg("memory"), nb::arg("owner"));
    m.def("address_of", address_of, nb::arg("memory"), "Return the address of a buffer in this process.");
}

}  // namespace dragon::py
