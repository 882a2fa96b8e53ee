//! `nova-policy keygen`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use nova_policy::VerifyKeys;
use nova_policy::bundle::KeyPair;

use super::files;

/// What to make and where to put it.
#[derive(Args)]
pub(super) struct Keygen {
    /// Where to write the private key (mode 0600)
    #[arg(short, long)]
    output: PathBuf,
    /// Verification keys: the public key is added to what is there
    #[arg(long)]
    public: PathBuf,
    /// Id of the key
    #[arg(long)]
    key_id: String,
    /// Kind of key
    #[arg(long, value_enum, default_value = "es256")]
    algorithm: Algorithm,
    /// Replace an existing private key
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Algorithm {
    Es256,
    Eddsa,
}

pub(super) fn run(keygen: &Keygen) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        keygen.force || !keygen.output.exists(),
        "{} exists: bundles signed with it would become unverifiable (use --force to replace it)",
        keygen.output.display()
    );
    let mut keys = if keygen.public.exists() {
        VerifyKeys::from_json(&files::read_text(&keygen.public)?)?
    } else {
        VerifyKeys::default()
    };
    let pair = match keygen.algorithm {
        Algorithm::Es256 => KeyPair::es256()?,
        Algorithm::Eddsa => KeyPair::eddsa()?,
    };
    keys.insert(&keygen.key_id, pair.algorithm, &pair.public_pem);
    files::replace(&keygen.output, pair.private_pem.as_bytes(), 0o600)?;
    files::replace(&keygen.public, keys.to_json().as_bytes(), 0o644)?;
    println!("{} key {} in {}", pair.algorithm, keygen.key_id, keygen.output.display());
    Ok(ExitCode::SUCCESS)
}
