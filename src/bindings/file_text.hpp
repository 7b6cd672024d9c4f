#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace dragon::py {

// Text of the operating system (arguments, variables, paths), which need not be UTF-8; encoded as by
// os.fsencode().
struct FileText : std::string {};

}  // namespace dragon::py

namespace nanobind::detail {

template <>
struct type_caster<dragon::py::FileText> {
    NB_TYPE_CASTER(dragon::py::FileText, const_name("str"))

    bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
        PyObject* bytes = PyUnicode_Check(source.ptr()) ? PyUnicode_EncodeFSDefault(source.ptr()) : nullptr;
        if (bytes == nullptr) {
            PyErr_Clear();
            return false;
        }
        value.assign(PyBytes_AsString(bytes), static_cast<size_t>(PyBytes_Size(bytes)));
        Py_DECREF(bytes);
        return true;
    }
};

}  // namespace nanobind::detail
