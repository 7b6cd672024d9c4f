#include "large_bytes.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace dragon::py {

namespace {

constexpr Py_ssize_t kHuge = 4 * 1024 * 1024;

// A bytes object that is filled piece by piece.
struct BytesInPieces {
    nb::object bytes;
    size_t missing;

    explicit BytesInPieces(Py_ssize_t size) {
        if (size < 0) throw nb::value_error("a size is 0 or more");
        bytes = nb::steal(new_bytes(size));
        if (!bytes.is_valid()) throw nb::python_error();
        missing = static_cast<size_t>(size);
    }
    void add(nb::handle piece) {
        Py_buffer view;
        if (PyObject_GetBuffer(piece.ptr(), &view, PyBUF_SIMPLE) < 0) throw nb::python_error();
        auto size = static_cast<size_t>(view.len);
        bool fits = bytes.is_valid() && size <= missing;
        if (fits) {
            char* end = PyBytes_AsString(bytes.ptr()) + PyBytes_Size(bytes.ptr());
            copy(end - missing, view.buf, size);
            missing -= size;
        }
        PyBuffer_Release(&view);
        if (!fits) throw nb::value_error("more than was said comes");
    }
    nb::object whole() {
        if (missing || !bytes.is_valid()) throw nb::value_error("not all of it is there");
        return std::move(bytes);
    }
};

}  // namespace

PyObject* new_bytes(Py_ssize_t size) {
    PyObject* bytes = PyBytes_FromStringAndSize(nullptr, size);
    if (bytes && size >= kHuge) {
        auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
        auto start = reinterpret_cast<uintptr_t>(PyBytes_AsString(bytes));
        uintptr_t first = (start + page - 1) / page * page;
        // The object can be used just as well if the kernel has no huge pages.
        (void)madvise(reinterpret_cast<void*>(first), (start + size - first) / page * page, MADV_HUGEPAGE);
    }
    return bytes;
}

void copy(void* to, const void* from, size_t size) {
    if (size < kCopyWithoutGil) {
        memcpy(to, from, size);
        return;
    }
    WithoutGil without;
    memcpy(to, from, size);
}

void bind_large_bytes(nb::module_& m) {
    nb::class_<BytesInPieces>(m, "BytesInPieces",
                              "A bytes object of `size` bytes that is filled with pieces in order.")
        .def(nb::init<Py_ssize_t>(), nb::arg("size"))
        .def_ro("missing", &BytesInPieces::missing, "The number of bytes that are missing.")
        .def("add", &BytesInPieces::add, nb::arg("piece"), nb::lock_self(),
             "Append the next piece. Raises ValueError for too many bytes.")
        .def("whole", &BytesInPieces::whole, nb::lock_self(),
             "Return the object, once. Raises ValueError while bytes are missing.");
}

}  // namespace dragon::py
