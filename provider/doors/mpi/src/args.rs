//! The arguments of a call, whichever language's entry point it came in by.

use core::ffi::c_int;

use crate::abi::{Abi, Handle};
use crate::fortran;
use crate::library::Function;
use crate::row::{Buf, Count, Places, Type};

/// How arguments are passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// C, with counts of `int`.
    C,
    /// C, with counts of MPI_Count.
    Large,
    /// Fortran: addresses of everything, of INTEGER handles too, and the error's code comes last. Only of
    /// Open MPI, whose Fortran library calls PMPI functions; those of others call MPI functions.
    Fortran,
}

/// The arguments.
#[derive(Debug)]
pub struct Args<'a> {
    /// As they came, and as they will be forwarded.
    pub words: &'a mut [usize],
    /// How they are passed.
    pub style: Style,
    /// Of the MPI.
    pub abi: &'a Abi,
}

/// The C handle of a Fortran one.
macro_rules! from_fortran {
    ($name:literal, $handle:expr) => {{
        static CONVERT: Function = Function::new(
            match core::ffi::CStr::from_bytes_with_nul(concat!("PMPI_", $name, "_f2c\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!(),
            },
        );
        convert(&CONVERT, $handle)
    }};
}

fn convert(function: &Function, handle: c_int) -> Handle {
    let Some(at) = function.address() else { return 0 };
    // SAFETY: MPI_Type_f2c(3) and its like take an INTEGER and answer a handle, which of Open MPI is a
    // pointer.
    unsafe { core::mem::transmute::<usize, unsafe extern "C" fn(c_int) -> usize>(at)(handle) }
}

static ELEMENTS: Function = Function::new(c"PMPI_Get_elements_x");

/// Whether the MPI says how long a message was.
pub fn knows_lengths() -> bool {
    ELEMENTS.address().is_some()
}

/// Bytes of the message that a status is of.
///
/// # Safety
/// It is a status, in C or, of Open MPI, whose bytes are the same there, in Fortran.
pub unsafe fn bytes_of(abi: &Abi, status: usize) -> usize {
    let mut count = 0i64;
    // SAFETY: the caller's promise, and a valid place.
    let code = unsafe { ELEMENTS.call(&[status, abi.handles.byte, (&raw mut count) as usize]) };
    if code == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }
}

/// Statuses of this library's, in place of those that the program does not want.
#[derive(Debug, Default)]
pub struct Statuses(Vec<u64>);

impl Statuses {
    /// So many, of messages without a byte as long as the MPI writes nothing.
    pub fn new(abi: &Abi, count: usize) -> Statuses {
        Statuses(vec![0; (count.max(1) * abi.status).div_ceil(8)])
    }

    /// The first one.
    pub fn at(&mut self) -> usize {
        self.0.as_mut_ptr() as usize
    }
}

impl Args<'_> {
    /// Has the MPI write so many statuses to the argument, which may be MPI_STATUS_IGNORE: what is returned
    /// is kept until they were read.
    pub fn want_statuses(&mut self, at: usize, count: usize) -> Statuses {
        let word = self.words[at];
        let is_ignored = match self.style {
            Style::Fortran => fortran::is_status_ignore(word),
            _ => word == self.abi.status_ignore,
        };
        if !is_ignored {
            return Statuses::default();
        }
        let mut own = Statuses::new(self.abi, count);
        self.words[at] = own.at();
        own
    }

    /// An `int` that is no count: a rank, a number of requests.
    ///
    /// # Safety
    /// The argument is one; so of all of these.
    pub unsafe fn int(&self, at: usize) -> c_int {
        match self.style {
            // SAFETY: the caller's promise.
            Style::Fortran => unsafe { (self.words[at] as *const c_int).read() },
            _ => self.words[at] as c_int,
        }
    }

    /// A count as it came.
    pub unsafe fn signed(&self, at: usize) -> i64 {
        match self.style {
            Style::Large => self.words[at] as i64,
            // SAFETY: the caller's promise.
            _ => i64::from(unsafe { self.int(at) }),
        }
    }

    /// A count, of which there cannot be less than none.
    pub unsafe fn count(&self, at: usize) -> usize {
        // SAFETY: the caller's promise.
        usize::try_from(unsafe { self.signed(at) }).unwrap_or(0)
    }

    /// A count of MPI_Count in all interfaces.
    pub unsafe fn long(&self, at: usize) -> usize {
        let count = match self.style {
            // SAFETY: the caller's promise.
            Style::Fortran => unsafe { (self.words[at] as *const i64).read_unaligned() },
            _ => self.words[at] as i64,
        };
        usize::try_from(count).unwrap_or(0)
    }

    /// One of an array of counts.
    pub unsafe fn count_at(&self, at: usize, n: usize) -> usize {
        // SAFETY: the caller's promise.
        let count = unsafe { self.number_at(at, n, self.style == Style::Large) };
        usize::try_from(count).unwrap_or(0)
    }

    /// Whether a buffer's argument is MPI_IN_PLACE.
    pub fn is_in_place(&self, word: usize) -> bool {
        match self.style {
            Style::Fortran => fortran::is_in_place(word),
            _ => word == self.abi.in_place,
        }
    }

    /// Whether an array that the buffer's call takes is NULL: the MPI says what is wrong with that.
    pub fn lacks_arrays(&self, buf: &Buf) -> bool {
        let is_null = |at: u8| self.words[usize::from(at)] == 0;
        let of_counts = match buf.count {
            Count::Each(at, Places::Extents(by) | Places::Bytes(by) | Places::Addresses(by), _) => {
                is_null(at) || is_null(by)
            }
            Count::Sum(at) | Count::OwnOrSum(at) => is_null(at),
            _ => false,
        };
        of_counts || matches!(buf.datatype, Type::Each(at) if is_null(at))
    }

    /// One of an array of integers, 64-bit ones if `wide`; -1 where there is no array.
    pub unsafe fn number_at(&self, at: usize, n: usize, wide: bool) -> isize {
        if self.words[at] == 0 {
            return -1;
        }
        // SAFETY: the caller's promise.
        unsafe {
            if wide {
                (self.words[at] as *const isize).add(n).read_unaligned()
            } else {
                (self.words[at] as *const c_int).add(n).read_unaligned() as isize
            }
        }
    }

    /// A datatype.
    pub unsafe fn datatype(&self, at: usize) -> Handle {
        // SAFETY: the caller's promise.
        unsafe { self.datatype_at(at, None) }
    }

    /// A datatype, or one of an array of them.
    pub unsafe fn datatype_at(&self, at: usize, n: Option<usize>) -> Handle {
        // SAFETY: the caller's promise.
        unsafe {
            match (self.style, n) {
                (Style::Fortran, n) => {
                    from_fortran!("Type", self.number_at(at, n.unwrap_or(0), false) as c_int)
                }
                (_, Some(n)) => self.abi.handle_at(self.words[at], n),
                (_, None) => self.abi.handle_in(self.words[at]),
            }
        }
    }

    /// An operation.
    pub unsafe fn op(&self, at: usize) -> Handle {
        match self.style {
            // SAFETY: the caller's promise.
            Style::Fortran => from_fortran!("Op", unsafe { self.int(at) }),
            _ => self.abi.handle_in(self.words[at]),
        }
    }

    /// A communicator.
    pub unsafe fn comm(&self, at: usize) -> Handle {
        match self.style {
            // SAFETY: the caller's promise.
            Style::Fortran => from_fortran!("Comm", unsafe { self.int(at) }),
            _ => self.abi.handle_in(self.words[at]),
        }
    }

    /// A communicator by reference.
    pub unsafe fn comm_at(&self, at: usize) -> Handle {
        match self.style {
            // SAFETY: the caller's promise.
            Style::Fortran => from_fortran!("Comm", unsafe { self.int(at) }),
            // SAFETY: the caller's promise.
            _ => unsafe { self.abi.handle_at(self.words[at], 0) },
        }
    }

    /// A window.
    pub unsafe fn window(&self, at: usize) -> Handle {
        match self.style {
            // SAFETY: the caller's promise.
            Style::Fortran => from_fortran!("Win", unsafe { self.int(at) }),
            _ => self.abi.handle_in(self.words[at]),
        }
    }

    /// A window by reference.
    pub unsafe fn window_at(&self, at: usize) -> Handle {
        match self.style {
            // SAFETY: the caller's promise.
            Style::Fortran => from_fortran!("Win", unsafe { self.int(at) }),
            // SAFETY: the caller's promise.
            _ => unsafe { self.abi.handle_at(self.words[at], 0) },
        }
    }

    /// A file.
    pub unsafe fn file(&self, at: usize) -> Handle {
        match self.style {
            // SAFETY: the caller's promise.
            Style::Fortran => from_fortran!("File", unsafe { self.int(at) }),
            // MPICH's handle of a file is a pointer.
            _ => self.words[at],
        }
    }

    /// A request by value.
    pub unsafe fn request_by_value(&self, at: usize) -> Handle {
        match self.style {
            // SAFETY: the caller's promise.
            Style::Fortran => from_fortran!("Request", unsafe { self.int(at) }),
            _ => self.abi.handle_in(self.words[at]),
        }
    }

    /// One of an array of requests; the first is also one by reference.
    pub unsafe fn request(&self, at: usize, n: usize) -> Handle {
        // SAFETY: the caller's promise.
        unsafe {
            match self.style {
                Style::Fortran => from_fortran!("Request", self.number_at(at, n, false) as c_int),
                _ => self.abi.handle_at(self.words[at], n),
            }
        }
    }

    /// Sets a request by reference to MPI_REQUEST_NULL.
    pub unsafe fn clear_request(&self, at: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.set_request(at, self.abi.handles.request_null) };
    }

    /// Writes a request by reference.
    pub unsafe fn set_request(&self, at: usize, request: Handle) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.style == Style::Fortran {
                static CONVERT: Function = Function::new(c"PMPI_Request_c2f");
                let number = CONVERT.call(&[request]);
                (self.words[at] as *mut c_int).write(number);
            } else {
                self.abi.set_handle(self.words[at], 0, request);
            }
        }
    }

    /// An `int` that the call has written.
    pub unsafe fn written(&self, at: usize, n: usize) -> c_int {
        // SAFETY: the caller's promise. A LOGICAL of Fortran is an integer that is 0 where it is false.
        unsafe { (self.words[at] as *const c_int).add(n).read_unaligned() }
    }

    /// What an index of this language counts from.
    pub fn first_index(&self) -> c_int {
        c_int::from(self.style == Style::Fortran)
    }

    /// Answers with a code where the language has it.
    pub unsafe fn answer(&self, code: c_int) -> c_int {
        if self.style == Style::Fortran {
            if let Some(place) = self.words.last() {
                // SAFETY: the last argument is the error's place.
                unsafe { (*place as *mut c_int).write(code) };
            }
        }
        code
    }

    /// The code with which the forwarded call has ended.
    pub unsafe fn code(&self, returned: c_int) -> c_int {
        match (self.style, self.words.last()) {
            // SAFETY: the last argument is the error's place.
            (Style::Fortran, Some(place)) => unsafe { (*place as *const c_int).read() },
            _ => returned,
        }
    }
}
