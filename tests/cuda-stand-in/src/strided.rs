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

#[cfg(test)]
mod tests {
    use super::*;

    fn side(at: usize, [x, y, z]: [usize; 3], pitch: usize, height: usize) -> Side {
        Side { x, y, z, lod: 0, memory: HOST, host: at, device: 0, array: 0, reserved: 0, pitch, height }
    }

    #[test]
    fn rows_and_planes_are_where_pitch_and_height_say() {
        let from: Vec<u8> = (0..64).collect();
        let mut to = [0u8; 12];
        let (src, dst) = (from.as_ptr() as usize, to.as_mut_ptr() as usize);
        let face = |pitch| Copy {
            src: side(src, [1, 1, 1], pitch, 4),
            dst: side(dst, [0; 3], 2, 2),
            width: 2,
            height: 2,
            depth: 3,
        };
        assert_eq!(copied(&face(4)), Ok(()));
        assert_eq!(to, [21, 22, 25, 26, 37, 38, 41, 42, 53, 54, 57, 58]);
        assert_eq!(copied(&face(2)), Err(INVALID_VALUE), "rows that overlap");
    }
}
