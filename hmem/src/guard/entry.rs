//! Where the kernel enters the handler of SIGSEGV and SIGBUS, and where that returns to.

use std::arch::global_asm;

use super::handler;

global_asm!(
    ".pushsection .text.strait_guard, \"ax\", @progbits",
    // The signal handler, with the place above its return address as fourth argument. By what precedes it
    // another copy of this code knows it.
    ".p2align 4",
    ".ascii \"strait guard 1\\0\\0\"",
    ".hidden strait_guard_entry",
    ".globl strait_guard_entry",
    "strait_guard_entry:",
    ".cfi_startproc",
    "lea rcx, [rsp + 8]",
    "jmp {on_fault}",
    ".cfi_endproc",
    // Where it returns to. Debuggers know these instructions, and look one byte before them.
    ".p2align 4",
    "nop",
    ".hidden strait_guard_return",
    ".globl strait_guard_return",
    "strait_guard_return:",
    "mov rax, 15",
    "syscall",
    ".popsection",
    on_fault = sym handler::on_fault,
);

/// Before the handler's first byte.
pub(super) const SIGNATURE: &[u8; 16] = b"strait guard 1\0\0";

unsafe extern "C" {
    static strait_guard_entry: u8;
    static strait_guard_return: u8;
}

/// The signal handler, and the return address (sa_restorer) given to the kernel.
pub(super) fn addresses() -> (usize, usize) {
    ((&raw const strait_guard_entry) as usize, (&raw const strait_guard_return) as usize)
}
