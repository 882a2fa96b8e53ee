//! Compiles the control protocol without `protoc`, only when the `grpc` feature asks for it.
fn main() {
    println!("cargo:rerun-if-changed=proto/control.proto");
    if std::env::var_os("CARGO_FEATURE_GRPC").is_none() {
        return;
    }
    let files = protox::compile(["proto/control.proto"], ["proto"]).expect("control.proto must compile");
    tonic_prost_build::configure().compile_fds(files).expect("gRPC code must generate");
}
