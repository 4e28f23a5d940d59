//! PTX, as far as the kernels of `provider/extras/device-ops` use it: it is parsed when a module is loaded,
//! and each thread of a launch is run to its end, or to a barrier of its block, one after the other.
//!
//! What is not known here is refused with its line, and registers are checked more strictly than the driver
//! does: an operand has the size of its instruction, but for ld, st and cvt, where it may be wider.
//! Source: the PTX ISA reference, NVIDIA.

mod float;
mod op;
mod parse;
mod run;

pub(crate) use op::Kernel;
pub(crate) use parse::parse;
pub(crate) use run::Launch;
