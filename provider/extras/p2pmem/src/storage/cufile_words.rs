//! cuFile's codes (cufile.h), and what helps.

use std::ffi::c_int;

const NAMES: [(c_int, &str); 47] = [
    (5001, "CU_FILE_DRIVER_NOT_INITIALIZED"),
    (5002, "CU_FILE_DRIVER_INVALID_PROPS"),
    (5003, "CU_FILE_DRIVER_UNSUPPORTED_LIMIT"),
    (5004, "CU_FILE_DRIVER_VERSION_MISMATCH"),
    (5005, "CU_FILE_DRIVER_VERSION_READ_ERROR"),
    (5006, "CU_FILE_DRIVER_CLOSING"),
    (5007, "CU_FILE_PLATFORM_NOT_SUPPORTED"),
    (5008, "CU_FILE_IO_NOT_SUPPORTED"),
    (5009, "CU_FILE_DEVICE_NOT_SUPPORTED"),
    (5010, "CU_FILE_NVFS_DRIVER_ERROR"),
    (5011, "CU_FILE_CUDA_DRIVER_ERROR"),
    (5012, "CU_FILE_CUDA_POINTER_INVALID"),
    (5013, "CU_FILE_CUDA_MEMORY_TYPE_INVALID"),
    (5014, "CU_FILE_CUDA_POINTER_RANGE_ERROR"),
    (5015, "CU_FILE_CUDA_CONTEXT_MISMATCH"),
    (5016, "CU_FILE_INVALID_MAPPING_SIZE"),
    (5017, "CU_FILE_INVALID_MAPPING_RANGE"),
    (5018, "CU_FILE_INVALID_FILE_TYPE"),
    (5019, "CU_FILE_INVALID_FILE_OPEN_FLAG"),
    (5020, "CU_FILE_DIO_NOT_SET"),
    (5022, "CU_FILE_INVALID_VALUE"),
    (5023, "CU_FILE_MEMORY_ALREADY_REGISTERED"),
    (5024, "CU_FILE_MEMORY_NOT_REGISTERED"),
    (5025, "CU_FILE_PERMISSION_DENIED"),
    (5026, "CU_FILE_DRIVER_ALREADY_OPEN"),
    (5027, "CU_FILE_HANDLE_NOT_REGISTERED"),
    (5028, "CU_FILE_HANDLE_ALREADY_REGISTERED"),
    (5029, "CU_FILE_DEVICE_NOT_FOUND"),
    (5030, "CU_FILE_INTERNAL_ERROR"),
    (5031, "CU_FILE_GETNEWFD_FAILED"),
    (5033, "CU_FILE_NVFS_SETUP_ERROR"),
    (5034, "CU_FILE_IO_DISABLED"),
    (5035, "CU_FILE_BATCH_SUBMIT_FAILED"),
    (5036, "CU_FILE_GPU_MEMORY_PINNING_FAILED"),
    (5037, "CU_FILE_BATCH_FULL"),
    (5038, "CU_FILE_ASYNC_NOT_SUPPORTED"),
    (5039, "CU_FILE_INTERNAL_BATCH_SETUP_ERROR"),
    (5040, "CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR"),
    (5041, "CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR"),
    (5042, "CU_FILE_INTERNAL_BATCH_CANCEL_ERROR"),
    (5043, "CU_FILE_NOMEM_ERROR"),
    (5044, "CU_FILE_IO_ERROR"),
    (5045, "CU_FILE_INTERNAL_BUF_REGISTER_ERROR"),
    (5046, "CU_FILE_HASH_OPR_ERROR"),
    (5047, "CU_FILE_INVALID_CONTEXT_ERROR"),
    (5048, "CU_FILE_NVFS_INTERNAL_DRIVER_ERROR"),
    (5049, "CU_FILE_BATCH_NOCOMPAT_ERROR"),
];

/// A code's name, CUDA's code if the first is about that, and what can be done.
pub(super) fn words(code: c_int, cuda: c_int) -> String {
    let name = NAMES.iter().find(|(of, _)| *of == code).map_or("unknown", |(_, name)| *name);
    if code == 1 {
        return "a system call failed".into();
    }
    let cuda = if cuda == 0 { String::new() } else { format!(", CUDA's {cuda}") };
    let cure = match code {
        5001 | 5004 | 5005 | 5033 => {
            ": no nvidia-fs; \"allow_compat_mode\": true in cufile.json (CUFILE_ENV_PATH_JSON) does without"
        }
        5007 | 5008 | 5018 | 5027 | 5034 => {
            ": cuFile cannot reach this file system directly, see cufile.log; CUFILE_FORCE_COMPAT_MODE=true may have it copy"
        }
        5019 | 5020 => ": the file has to be open with O_DIRECT",
        5025 => ": the device nodes of nvidia-fs, or the file, may not be opened by this user",
        _ => "",
    };
    format!("{name} ({code}{cuda}){cure}")
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn each_code_has_its_name_and_the_frequent_ones_a_cure() {
        assert_eq!(words(5011, 999), "CU_FILE_CUDA_DRIVER_ERROR (5011, CUDA's 999)");
        assert_eq!(words(77, 0), "unknown (77)");
        assert!(words(5027, 0).starts_with("CU_FILE_HANDLE_NOT_REGISTERED (5027): "));
        assert!(words(5027, 0).contains("CUFILE_FORCE_COMPAT_MODE=true"));
        assert!(words(5001, 0).contains("CUFILE_ENV_PATH_JSON"));
        // The longest has room in `strait_storage_info.why`, behind the name of a function.
        assert!((5001..5050).all(|code| words(code, 999).len() < 200), "too long");
    }
}
