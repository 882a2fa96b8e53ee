//! The app of the virtual machine in which the guest link over AF_VSOCK is tried; see `nova_tests::vsock_check`.

use std::process::ExitCode;

fn main() -> ExitCode {
    match nova_tests::vsock_check::run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("nova-vsock-check: {error:#}");
            ExitCode::FAILURE
        }
    }
}
