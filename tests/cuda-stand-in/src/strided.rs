//! Strided copies, of linear memory.

use crate::{INVALID_VALUE, NOT_SUPPORTED, SUCCESS, enter_in_context, memory};

/// `CU_MEMORYTYPE_HOST`, `CU_MEMORYTYPE_DEVICE`, `CU_MEMORYTYPE_UNIFIED`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const UNIFIED: u32 = 4;

/// One side of a copy.
#[repr(C)]
pub struct Side {
    x: usize,
    y: usize,
    z: usize,
    lod: usize,
    memory: u32,
    host: usize,
    device: u64,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
pub struct Copy {
    src: Side,
    dst: Side,
    width: usize,
    height: usize,
    depth: usize,
}

impl Side {
    fn at(&self) -> Result<usize, i32> {
        match self.memory {
            HOST => Ok(self.host),
            DEVICE | UNIFIED => Ok(self.device as usize),
            _ => Err(NOT_SUPPORTED),
        }
    }

    /// Where a row is.
    fn row(&self, at: usize, y: usize, z: usize) -> usize {
        at + ((self.z + z) * self.height + self.y + y) * self.pitch + self.x
    }

    /// A pitch and a height of 0 are those of the copy.
    fn fits(&self, copy: &Copy) -> bool {
        self.lod == 0
            && (copy.height <= 1 && copy.depth <= 1 || self.pitch >= self.x + copy.width)
            && (copy.depth <= 1 || self.height >= self.y + copy.height)
    }
}

/// As cuMemcpy, when it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy3D_v2(copy: *const Copy) -> i32 {
    enter_in_context!("cuMemcpy3D_v2");
    match unsafe { copied(&*copy) } {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

fn copied(copy: &Copy) -> Result<(), i32> {
    let (from, to) = (copy.src.at()?, copy.dst.at()?);
    if !copy.src.fits(copy) || !copy.dst.fits(copy) {
        return Err(INVALID_VALUE);
    }
    for z in 0..copy.depth {
        for y in 0..copy.height {
            if !memory::copy(copy.dst.row(to, y, z), copy.src.row(from, y, z), copy.width) {
                return Err(INVALID_VALUE);
            }
        }
    }
    Ok(())
}
