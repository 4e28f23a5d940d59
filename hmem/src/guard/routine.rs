//! The instructions that touch memory which may not be there, all between two labels. A fault at any of them
//! goes on at `strait_guard_fault`, which returns to the caller and says so: none of them has anything on the
//! stack, so that it can.

use std::arch::global_asm;

use super::fault::{Cell, Fault};

/// From how many bytes on the processor's own loop is used. Below that its start costs more than it saves.
const LONG: usize = 4096;

/// What a routine says: rax and rdx.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) value: u64,
    /// 0, unless there was a fault.
    pub(super) fault: u64,
}

global_asm!(
    ".pushsection .text.strait_guard, \"ax\", @progbits",
    ".p2align 6",
    ".hidden strait_guard_begin",
    ".globl strait_guard_begin",
    "strait_guard_begin:",
    // copy(rdi to, rsi from, rdx len) -> 0, or 1 after a fault. Up to 64 bytes everything is loaded before
    // anything is stored; a whole power of two up to 16 bytes is one store.
    ".hidden strait_guard_copy",
    ".globl strait_guard_copy",
    ".type strait_guard_copy, @function",
    "strait_guard_copy:",
    ".cfi_startproc",
    "cmp rdx, 16",
    "ja .Lstrait_guard_17",
    "cmp edx, 8",
    "jb .Lstrait_guard_7",
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], rcx",
    "xor eax, eax",
    "ret",
    ".Lstrait_guard_7:",
    "cmp edx, 4",
    "jb .Lstrait_guard_3",
    "mov eax, [rsi]",
    "mov ecx, [rsi + rdx - 4]",
    "mov [rdi], eax",
    "mov [rdi + rdx - 4], ecx",
    "xor eax, eax",
    "ret",
    ".Lstrait_guard_3:",
    "cmp edx, 2",
    "jb .Lstrait_guard_1",
    "movzx eax, word ptr [rsi]",
    "movzx ecx, word ptr [rsi + rdx - 2]",
    "mov [rdi], ax",
    "mov [rdi + rdx - 2], cx",
    "xor eax, eax",
    "ret",
    ".Lstrait_guard_1:",
    "test edx, edx",
    "jz .Lstrait_guard_0",
    "movzx eax, byte ptr [rsi]",
    "mov [rdi], al",
    ".Lstrait_guard_0:",
    "xor eax, eax",
    "ret",
    ".Lstrait_guard_17:",
    "cmp rdx, 32",
    "ja .Lstrait_guard_33",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "xor eax, eax",
    "ret",
    ".Lstrait_guard_33:",
    "cmp rdx, 64",
    "ja .Lstrait_guard_65",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "xor eax, eax",
    "ret",
    ".Lstrait_guard_65:",
    // Where the destination begins inside the source, backwards.
    "mov rax, rdi",
    "sub rax, rsi",
    "cmp rax, rdx",
    "jb .Lstrait_guard_backwards",
    "cmp rdx, {long}",
    "jae .Lstrait_guard_long",
    // The last 64 bytes are loaded first: they may be in the way of those before.
    ".Lstrait_guard_far:",
    "movups xmm4, [rsi + rdx - 64]",
    "movups xmm5, [rsi + rdx - 48]",
    "movups xmm6, [rsi + rdx - 32]",
    "movups xmm7, [rsi + rdx - 16]",
    "lea r8, [rdi + rdx - 64]",
    ".Lstrait_guard_loop:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "cmp rdi, r8",
    "jb .Lstrait_guard_loop",
    "movups [r8], xmm4",
    "movups [r8 + 16], xmm5",
    "movups [r8 + 32], xmm6",
    "movups [r8 + 48], xmm7",
    "xor eax, eax",
    "ret",
    ".Lstrait_guard_long:",
    // A destination of 1 to 31 bytes behind the source within a page makes `rep movsb` slow (crate::bytes).
    "dec eax",
    "and eax, 4095",
    "cmp eax, 31",
    "jb .Lstrait_guard_far",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".Lstrait_guard_backwards:",
    "lea rsi, [rsi + rdx - 1]",
    "lea rdi, [rdi + rdx - 1]",
    "mov rcx, rdx",
    "std",
    "rep movsb",
    "cld",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size strait_guard_copy, . - strait_guard_copy",
    // The same for 65 bytes and more where the processor has AVX.
    ".hidden strait_guard_copy_wide",
    ".globl strait_guard_copy_wide",
    ".type strait_guard_copy_wide, @function",
    ".p2align 5",
    "strait_guard_copy_wide:",
    ".cfi_startproc",
    "mov rax, rdi",
    "sub rax, rsi",
    "cmp rax, rdx",
    "jb .Lstrait_guard_backwards",
    "cmp rdx, {long}",
    "jae .Lstrait_guard_long",
    "vmovdqu ymm2, [rsi + rdx - 64]",
    "vmovdqu ymm3, [rsi + rdx - 32]",
    "lea r8, [rdi + rdx - 64]",
    ".Lstrait_guard_wide_loop:",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu [rdi], ymm0",
    "vmovdqu [rdi + 32], ymm1",
    "add rsi, 64",
    "add rdi, 64",
    "cmp rdi, r8",
    "jb .Lstrait_guard_wide_loop",
    "vmovdqu [r8], ymm2",
    "vmovdqu [r8 + 32], ymm3",
    "vzeroupper",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size strait_guard_copy_wide, . - strait_guard_copy_wide",
    // The atomics: cell in rdi, what was there before in rax, 0 in rdx.
    ".macro strait_guard_cell bits, size, a, b, c",
    ".hidden strait_guard_load\\bits",
    ".globl strait_guard_load\\bits",
    "strait_guard_load\\bits:",
    ".cfi_startproc",
    "mov \\a, \\size ptr [rdi]",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    // Puts rsi there.
    ".hidden strait_guard_swap\\bits",
    ".globl strait_guard_swap\\bits",
    "strait_guard_swap\\bits:",
    ".cfi_startproc",
    "mov rax, rsi",
    "xor edx, edx",
    "xchg \\size ptr [rdi], \\a",
    "ret",
    ".cfi_endproc",
    // Adds rsi.
    ".hidden strait_guard_add\\bits",
    ".globl strait_guard_add\\bits",
    "strait_guard_add\\bits:",
    ".cfi_startproc",
    "mov rax, rsi",
    "xor edx, edx",
    "lock xadd \\size ptr [rdi], \\a",
    "ret",
    ".cfi_endproc",
    // Puts rdx there if rsi was there.
    ".hidden strait_guard_cas\\bits",
    ".globl strait_guard_cas\\bits",
    "strait_guard_cas\\bits:",
    ".cfi_startproc",
    "mov rax, rsi",
    "mov rcx, rdx",
    "xor edx, edx",
    "lock cmpxchg \\size ptr [rdi], \\c",
    "ret",
    ".cfi_endproc",
    // Combines it with rsi.
    ".hidden strait_guard_and\\bits",
    ".globl strait_guard_and\\bits",
    "strait_guard_and\\bits:",
    ".cfi_startproc",
    "mov \\a, \\size ptr [rdi]",
    ".Lstrait_guard_again_and\\bits:",
    "mov rcx, rax",
    "and rcx, rsi",
    "lock cmpxchg \\size ptr [rdi], \\c",
    "jne .Lstrait_guard_again_and\\bits",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    ".hidden strait_guard_or\\bits",
    ".globl strait_guard_or\\bits",
    "strait_guard_or\\bits:",
    ".cfi_startproc",
    "mov \\a, \\size ptr [rdi]",
    ".Lstrait_guard_again_or\\bits:",
    "mov rcx, rax",
    "or rcx, rsi",
    "lock cmpxchg \\size ptr [rdi], \\c",
    "jne .Lstrait_guard_again_or\\bits",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    ".hidden strait_guard_xor\\bits",
    ".globl strait_guard_xor\\bits",
    "strait_guard_xor\\bits:",
    ".cfi_startproc",
    "mov \\a, \\size ptr [rdi]",
    ".Lstrait_guard_again_xor\\bits:",
    "mov rcx, rax",
    "xor rcx, rsi",
    "lock cmpxchg \\size ptr [rdi], \\c",
    "jne .Lstrait_guard_again_xor\\bits",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    ".endm",
    "strait_guard_cell 8, byte, al, sil, cl",
    "strait_guard_cell 16, word, ax, si, cx",
    "strait_guard_cell 32, dword, eax, esi, ecx",
    "strait_guard_cell 64, qword, rax, rsi, rcx",
    ".purgem strait_guard_cell",
    ".hidden strait_guard_end",
    ".globl strait_guard_end",
    "strait_guard_end:",
    // Where a fault goes on, in the frame of the routine.
    ".hidden strait_guard_fault",
    ".globl strait_guard_fault",
    "strait_guard_fault:",
    ".cfi_startproc",
    "cld",
    "mov eax, 1",
    "mov edx, 1",
    "ret",
    ".cfi_endproc",
    ".popsection",
    long = const LONG,
);

unsafe extern "C" {
    static strait_guard_begin: u8;
    static strait_guard_end: u8;
    static strait_guard_fault: u8;

    fn strait_guard_copy(to: *mut u8, from: *const u8, len: usize) -> usize;
    fn strait_guard_copy_wide(to: *mut u8, from: *const u8, len: usize) -> usize;
}

/// Copies; 0, or 1 after a fault.
///
/// # Safety
/// As for [`super::copy`], with the handler installed.
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        if len > 64 && std::arch::is_x86_feature_detected!("avx") {
            strait_guard_copy_wide(to, from, len)
        } else {
            strait_guard_copy(to, from, len)
        }
    }
}

/// The addresses of the instructions that may fault.
pub(super) fn instructions() -> std::ops::Range<usize> {
    (&raw const strait_guard_begin) as usize..(&raw const strait_guard_end) as usize
}

/// Where they go on then.
pub(super) fn fix_up() -> usize {
    (&raw const strait_guard_fault) as usize
}

macro_rules! cells {
    ($($int:ty: $load:ident $swap:ident $cas:ident $add:ident $and:ident $or:ident $xor:ident;)*) => {
        unsafe extern "C" {$(
            fn $load(cell: *mut u8) -> Answer;
            fn $swap(cell: *mut u8, value: u64) -> Answer;
            fn $add(cell: *mut u8, value: u64) -> Answer;
            fn $and(cell: *mut u8, value: u64) -> Answer;
            fn $or(cell: *mut u8, value: u64) -> Answer;
            fn $xor(cell: *mut u8, value: u64) -> Answer;
            fn $cas(cell: *mut u8, expected: u64, value: u64) -> Answer;
        )*}
        $(
            impl Cell for $int {
                #[inline]
                unsafe fn load(cell: *mut u8) -> Result<$int, Fault> {
                    // SAFETY: the caller's promise.
                    of(unsafe { $load(cell) }).map(|v| v as $int)
                }
                #[inline]
                unsafe fn swap(cell: *mut u8, value: $int) -> Result<$int, Fault> {
                    // SAFETY: the caller's promise.
                    of(unsafe { $swap(cell, value.into()) }).map(|v| v as $int)
                }
                #[inline]
                unsafe fn add(cell: *mut u8, value: $int) -> Result<$int, Fault> {
                    // SAFETY: the caller's promise.
                    of(unsafe { $add(cell, value.into()) }).map(|v| v as $int)
                }
                #[inline]
                unsafe fn and(cell: *mut u8, value: $int) -> Result<$int, Fault> {
                    // SAFETY: the caller's promise.
                    of(unsafe { $and(cell, value.into()) }).map(|v| v as $int)
                }
                #[inline]
                unsafe fn or(cell: *mut u8, value: $int) -> Result<$int, Fault> {
                    // SAFETY: the caller's promise.
                    of(unsafe { $or(cell, value.into()) }).map(|v| v as $int)
                }
                #[inline]
                unsafe fn xor(cell: *mut u8, value: $int) -> Result<$int, Fault> {
                    // SAFETY: the caller's promise.
                    of(unsafe { $xor(cell, value.into()) }).map(|v| v as $int)
                }
                #[inline]
                unsafe fn cas(cell: *mut u8, expected: $int, value: $int) -> Result<$int, Fault> {
                    // SAFETY: the caller's promise.
                    of(unsafe { $cas(cell, expected.into(), value.into()) }).map(|v| v as $int)
                }
            }
        )*
    };
}

#[inline]
fn of(answer: Answer) -> Result<u64, Fault> {
    if answer.fault == 0 { Ok(answer.value) } else { Err(Fault) }
}

cells! {
    u8: strait_guard_load8 strait_guard_swap8 strait_guard_cas8 strait_guard_add8 strait_guard_and8 strait_guard_or8 strait_guard_xor8;
    u16: strait_guard_load16 strait_guard_swap16 strait_guard_cas16 strait_guard_add16 strait_guard_and16 strait_guard_or16 strait_guard_xor16;
    u32: strait_guard_load32 strait_guard_swap32 strait_guard_cas32 strait_guard_add32 strait_guard_and32 strait_guard_or32 strait_guard_xor32;
    u64: strait_guard_load64 strait_guard_swap64 strait_guard_cas64 strait_guard_add64 strait_guard_and64 strait_guard_or64 strait_guard_xor64;
}
