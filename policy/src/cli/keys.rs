//! `nova-policy keygen`

use std::path::{Path, PathBuf};
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
    #[arg(long, value_parser = key_id)]
    key_id: String,
    /// Kind of key
    #[arg(long, value_enum, default_value = "es256")]
    algorithm: Algorithm,
    /// Replace an existing private key, or the public key of this id
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Algorithm {
    Es256,
    Eddsa,
}

/// Bundles, configurations and people must all be able to write it.
fn key_id(text: &str) -> Result<String, String> {
    let fits = (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    let what_to_do = "the key needs a name that bundles can carry, 1 to 128 visible ASCII characters: --key-id k1";
    if fits { Ok(text.to_owned()) } else { Err(what_to_do.to_owned()) }
}

pub(super) fn run(keygen: &Keygen) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        keygen.force || !keygen.output.exists(),
        "{} exists: bundles signed with it would become unverifiable (use --force to replace it)",
        keygen.output.display()
    );
    anyhow::ensure!(
        !same_file(&keygen.output, &keygen.public),
        "{} cannot hold both keys: the public one would replace the private one; give --public another file",
        keygen.output.display()
    );
    let mut keys = if keygen.public.exists() {
        VerifyKeys::from_json(&files::read_text(&keygen.public)?)?
    } else {
        VerifyKeys::default()
    };
    anyhow::ensure!(
        keygen.force || !keys.has(&keygen.key_id),
        "{} has a key {:?}: bundles signed with it would become unverifiable (choose another --key-id, or --force)",
        keygen.public.display(),
        keygen.key_id
    );
    let pair = match keygen.algorithm {
        Algorithm::Es256 => KeyPair::es256()?,
        Algorithm::Eddsa => KeyPair::eddsa()?,
    };
    keys.insert(&keygen.key_id, pair.algorithm, &pair.public_pem);
    files::write_secret(&keygen.output, pair.private_pem.as_bytes())?;
    files::write(&keygen.public, keys.to_json().as_bytes())?;
    println!("{} key {} in {}", pair.algorithm, keygen.key_id, keygen.output.display());
    Ok(ExitCode::SUCCESS)
}

/// Whether two paths name one file, also through links and before it exists.
fn same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        path.canonicalize().ok().or_else(|| Some(folder.canonicalize().ok()?.join(path.file_name()?)))
    };
    one == other || real(one).is_some_and(|one| real(other) == Some(one))
}
