# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Where the bytes of an array are, whichever protocol shows them: __cuda_array_interface__ (CuPy, Numba, CUDA tensors of PyTorch),
__array_interface__ and the buffer protocol (NumPy, bytearray), and DLPack (any tensor)."""
import ctypes
import re
from ctypes import POINTER, c_char, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p


class _Device(ctypes.Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device", _Device), ("ndim", c_int32), ("dtype", _DataType), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class _Version(ctypes.Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32)]


class _Versioned(ctypes.Structure):
    _fields_ = [("version", _Version), ("manager_ctx", c_void_p), ("deleter", c_void_p), ("flags", c_uint64), ("tensor", _Tensor)]


# DLPack's numbers of devices whose memory the driver, or the CPU, reaches by the address itself: CPU, CUDA, CUDA_HOST, ROCM,
# ROCM_HOST, CUDA_MANAGED, oneAPI.
_REACHED = (1, 2, 3, 10, 11, 13, 14)
_READ_ONLY = 1


def is_contiguous(shape, strides, size):
    """Whether elements of `size` stand one behind the other; strides in the unit of `size`."""
    if strides is None or 0 in shape:
        return True
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n != 1 and stride != size:
            return False
        size *= n
    return True


def _capsule(of):
    """Its DLPack capsule: of the versioned sort where there is that."""
    try:
        return of.__dlpack__(max_version=(1, 0))
    except TypeError:
        return of.__dlpack__()


def _dlpack(of):
    """Address, bytes, whether it may not be written, whether it is contiguous, and what keeps it: the capsule, which is not
    consumed, so that its destructor gives it back."""
    capsule = _capsule(of)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, (ctypes.py_object, c_char_p)
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = c_char_p, (ctypes.py_object,)
    called = name(capsule)
    if called == b"dltensor":
        readonly = False
        tensor = ctypes.cast(pointer(capsule, called), POINTER(_Tensor)).contents
    elif called == b"dltensor_versioned":
        versioned = ctypes.cast(pointer(capsule, called), POINTER(_Versioned)).contents
        if versioned.version.major != 1:
            raise ValueError("a capsule of DLPack {}: 1 is known".format(versioned.version.major))
        readonly, tensor = bool(versioned.flags & _READ_ONLY), versioned.tensor
    else:
        raise ValueError("__dlpack__ gives a capsule that is none of DLPack's, or was used: {!r}".format(called))
    if tensor.device.type not in _REACHED:
        raise ValueError("memory of device {} of DLPack is not reached by its address".format(tensor.device.type))
    shape = tensor.shape[:tensor.ndim]
    strides = tensor.strides[:tensor.ndim] if tensor.strides else None
    bits = tensor.dtype.bits * tensor.dtype.lanes
    for n in shape:
        bits *= n
    return (tensor.data or 0) + tensor.byte_offset, (bits + 7) // 8, readonly, is_contiguous(shape, strides, 1), capsule


def _plain(of, readonly_too):
    """The same by the buffer protocol."""
    view = memoryview(of)
    if "O" in re.sub(":[^:]*:", "", view.format):
        raise ValueError("references to objects are not plain memory")
    if not view.c_contiguous or not view.nbytes:
        return 0, view.nbytes, view.readonly, view.c_contiguous, view
    if not view.readonly:
        return ctypes.addressof((c_char * view.nbytes).from_buffer(of)), view.nbytes, False, True, view
    if not readonly_too:
        raise ValueError("the buffer may not be written: pass a bytearray or an array")
    # Of bytes the address is that of its characters, which stay as long as the object.
    whole = view.obj if isinstance(view.obj, bytes) and view.nbytes == len(view.obj) else bytes(view)
    return ctypes.cast(ctypes.c_char_p(whole), c_void_p).value, view.nbytes, True, True, whole


def _element(array):
    """Bytes of an element."""
    kind, digits = array["typestr"][1], re.match(r"[0-9]*", array["typestr"][2:]).group()
    # References to objects are no bytes of a file, and bits are not counted in bytes.
    if kind in "Ot" or not digits or "O" in _kinds(array.get("descr") or ()):
        raise ValueError("elements of the type {} are not plain memory".format(array["typestr"]))
    # Text is counted in characters.
    return int(digits) * (4 if kind == "U" else 1)


def _kinds(descr):
    """The kinds of all fields of a type."""
    for _, of, *_ in descr:
        if isinstance(of, str):
            yield of[1:2]
        else:
            yield from _kinds(of)


def _is_masked(of):
    return any(kind.__name__ == "MaskedArray" and kind.__module__.startswith("numpy.ma") for kind in type(of).__mro__)


def _array(array, of):
    shape, size = tuple(array["shape"]), _element(array)
    address, readonly = array["data"]
    contiguous, length = is_contiguous(shape, array.get("strides"), size), size
    for n in shape:
        length *= n
    return address or 0, length, readonly, contiguous, of


def find(of, writable=False):
    """Address, bytes, and what has to be kept as long as they are used."""
    array = getattr(of, "__cuda_array_interface__", None) or getattr(of, "__array_interface__", None)
    if array is not None and array.get("data"):
        if array.get("mask") is not None or _is_masked(of):
            raise ValueError("an array with a mask is not plain memory")
        found = _array(array, of)
    elif hasattr(of, "__dlpack__"):
        found = _dlpack(of)
    else:
        try:
            found = _plain(of, not writable)
        except TypeError:
            raise TypeError("{}: no buffer, no array, and no tensor of DLPack".format(type(of).__name__)) from None
    address, length, readonly, contiguous, kept = found
    if not contiguous:
        raise ValueError("the buffer is not contiguous: make a copy of it (cupy.ascontiguousarray, Tensor.contiguous)")
    if writable and readonly:
        raise ValueError("the buffer may not be written: pass one that may")
    return address, length, (of, kept)
