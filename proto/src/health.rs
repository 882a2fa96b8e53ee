//! The answer of `grpc.health.v1.Health/Check`, the health service that servers of gRPC bring along.

use prost::Message;

/// `ServingStatus.SERVING`.
const SERVING: i32 = 1;

#[derive(Clone, PartialEq, Eq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Whether an encoded `HealthCheckResponse` says that the server serves.
#[must_use]
pub fn is_serving(message: &[u8]) -> bool {
    HealthCheckResponse::decode(message).is_ok_and(|response| response.status == SERVING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_serving_is_serving() {
        assert!(is_serving(&[8, 1]));
        // A field of tomorrow behind it.
        assert!(is_serving(&[8, 1, 18, 1, b'x']));
        for other in [&[][..], &[8, 0], &[8, 2], &[8, 3], &[8, 0x81, 0x80, 1], &[8], &[10, 1, 1], b"SERVING"] {
            assert!(!is_serving(other), "{other:?}");
        }
    }
}
