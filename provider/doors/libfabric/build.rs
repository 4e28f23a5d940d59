//! Link arguments of the plugin.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The core unloads its providers in a destructor; a thread, or a destructor of thread-local
    // data, that is still to run must find its code then.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
