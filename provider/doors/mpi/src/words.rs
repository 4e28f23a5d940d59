//! Calls of C functions whose arguments are all words: integers, pointers and handles. The interface of an
//! MPI has no other arguments in the calls that are made here.
//!
//! An `int` argument has 32 defined bits in its word, on the architectures that Linux runs MPI on. It is
//! forwarded as it came, and read by its low half.

use core::ffi::c_int;

macro_rules! by_arity {
    ($function:ident, $words:ident; $($n:literal => $($at:literal)*;)*) => {
        match $words.len() {
            $($n => {
                // SAFETY: the caller's promise: the function takes that many words.
                unsafe {
                    let f: unsafe extern "C" fn($(by_arity!(@word $at)),*) -> c_int =
                        core::mem::transmute::<usize, _>($function);
                    f($($words[$at]),*)
                }
            })*
            n => unreachable!("a call of {n} words"),
        }
    };
    (@word $at:literal) => { usize };
}

/// Calls the function at that address.
///
/// # Safety
/// It is a C function of as many arguments, each of an integer class, and they are valid for it.
pub unsafe fn call(function: usize, words: &[usize]) -> c_int {
    by_arity! { function, words;
        0 => ;
        1 => 0;
        2 => 0 1;
        3 => 0 1 2;
        4 => 0 1 2 3;
        5 => 0 1 2 3 4;
        6 => 0 1 2 3 4 5;
        7 => 0 1 2 3 4 5 6;
        8 => 0 1 2 3 4 5 6 7;
        9 => 0 1 2 3 4 5 6 7 8;
        10 => 0 1 2 3 4 5 6 7 8 9;
        11 => 0 1 2 3 4 5 6 7 8 9 10;
        12 => 0 1 2 3 4 5 6 7 8 9 10 11;
        13 => 0 1 2 3 4 5 6 7 8 9 10 11 12;
        14 => 0 1 2 3 4 5 6 7 8 9 10 11 12 13;
        15 => 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14;
        16 => 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn weighted(a: usize, b: c_int, c: usize) -> c_int {
        (a + 10 * b as usize + 100 * c) as c_int
    }

    #[test]
    fn arguments_arrive_in_order_and_an_int_has_its_low_half() {
        // SAFETY: three words; of the second the low half is read.
        assert_eq!(unsafe { call(weighted as *const () as usize, &[1, 2 | 7 << 32, 3]) }, 321);
    }
}
