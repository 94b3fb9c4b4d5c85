// The decimal module's context, per fiber.
//
// A fiber starts with a copy of its spawner's contextvars. The value of the decimal module's is an
// object that programs change in place (getcontext().prec = 5), so a fiber needs a copy of that
// object as well, as a thread has one of its own.
#pragma once

namespace runloom::python {

// Gives the running fiber a decimal context of its own, if it has inherited one. What fails is
// reported as unraisable: the fiber then shares its spawner's.
void own_decimal_context() noexcept;

}  // namespace runloom::python
