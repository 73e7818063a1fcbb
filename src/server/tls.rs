//! HTTPS by rustls: certificate, key and client authorities from files, re-read on change.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::Version;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::TlsFiles;

/// As TLS calls it.
const HTTP_2: &[u8] = b"h2";

/// What new connections shake hands with.
pub struct Tls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
}

/// Why the files do not make a server.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing or holds no PEM of the right kind.
    #[error("{}: {cause}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        cause: rustls::pki_types::pem::Error,
    },
    /// A file holds no certificate.
    #[error("{}: no certificate in it", .0.display())]
    Empty(PathBuf),
    /// The key is not the certificate's, or cannot be used.
    #[error("{}: {cause}", .path.display())]
    Unfit {
        /// The certificate's file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: rustls::Error,
    },
    /// The client authorities cannot be used.
    #[error("{}: {cause}", .path.display())]
    Authorities {
        /// Their file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: rustls::server::VerifierBuilderError,
    },
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Names the file that is wrong.
    pub fn new(files: TlsFiles) -> Result<Self, TlsError> {
        let config = read(&files)?;
        Ok(Self { files, config: ArcSwap::from(config) })
    }

    /// For one handshake.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Reads the files again. Connections that are open keep what they have.
    ///
    /// # Errors
    /// As [`Tls::new`]; what was read before stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.config.store(read(&self.files)?);
        Ok(())
    }

    /// The files to watch.
    pub fn paths(&self) -> Vec<PathBuf> {
        let TlsFiles { cert, key, client_ca } = &self.files;
        [cert, key].into_iter().chain(client_ca).cloned().collect()
    }
}

/// What was agreed upon in the handshake (ALPN).
pub(super) fn agreed<S>(stream: &TlsStream<S>) -> Version {
    match stream.get_ref().1.alpn_protocol() {
        Some(HTTP_2) => Version::HTTP_2,
        _ => Version::HTTP_11,
    }
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unfit = |cause| TlsError::Unfit { path: files.cert.clone(), cause };
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|cause| TlsError::File { path: files.key.clone(), cause })?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(unfit)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(|cause| TlsError::Unfit { path: path.clone(), cause })?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|cause| TlsError::Authorities { path: path.clone(), cause })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(certificates(&files.cert)?, key).map_err(unfit)?;
    config.alpn_protocols = vec![HTTP_2.to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |cause| TlsError::File { path: path.to_owned(), cause };
    let all: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)?;
    if all.is_empty() { Err(TlsError::Empty(path.to_owned())) } else { Ok(all) }
}
