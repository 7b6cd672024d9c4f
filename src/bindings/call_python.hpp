// Calls into Python that survive the end of the interpreter.
#pragma once

namespace dragon::py {

// Calls `f(context)`. A thread that Python ends in there, with pthread_exit(), waits for the end of the
// process instead.
void call_python(void (*f)(void*), void* context);

// Calls into Python, or takes the GIL, by functions of Python's C API alone: `f` has nothing to destroy and
// throws nothing.
//
// Before 3.14 Python ends a daemon thread that does so while the interpreter ends. That would unwind the
// stack, which may not pass through functions that are noexcept, as nanobind's and all destructors are, and
// which would drop references without the GIL.
template <class F>
auto in_python(F f) {
    using Result = decltype(f());
    struct Call {
        F f;
        Result result;
    } call{f, {}};
    call_python([](void* c) { static_cast<Call*>(c)->result = static_cast<Call*>(c)->f(); }, &call);
    return call.result;
}

}  // namespace dragon::py
