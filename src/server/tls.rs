//! HTTPS by rustls: certificate, key and client authorities from files, re-read on change.

use std::fmt::Display;
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
use crate::telemetry::TLS_CERTIFICATE_EXPIRY;

/// What new connections shake hands with.
pub struct Tls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
}

/// Which file does not make a server, and why.
fn unfit(path: &Path, why: impl Display) -> String {
    format!("{}: {why}", path.display())
}

impl Tls {
    /// Reads the files.
    pub fn new(files: TlsFiles) -> Result<Self, String> {
        let config = read(&files)?;
        Ok(Self { files, config: ArcSwap::from(config) })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Reads the files again. Connections that are open keep what they have.
    ///
    /// # Errors
    /// As [`Tls::new`]; what was read before stays in use.
    pub fn reload(&self) -> Result<(), String> {
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
pub(super) fn agreed<S>(stream: &TlsStream<S>) -> Option<Version> {
    match stream.get_ref().1.alpn_protocol()? {
        b"h2" => Some(Version::HTTP_2),
        _ => Some(Version::HTTP_11),
    }
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unfit_cert = |cause: rustls::Error| unfit(&files.cert, cause);
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|cause| unfit(&files.key, cause))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(unfit_cert)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(|cause| unfit(path, cause))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|cause| unfit(path, cause))?)
        }
    };
    let chain = certificates(&files.cert)?;
    let expiry = chain.first().and_then(expiry);
    let mut config = builder.with_single_cert(chain, key).map_err(unfit_cert)?;
    if let Some(expiry) = expiry {
        TLS_CERTIFICATE_EXPIRY.gauge(&[]).set(expiry as f64);
    }
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// When a certificate expires, seconds since the epoch.
fn expiry(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.map_err(|cause| unfit(path, cause))?;
    if all.is_empty() { Err(unfit(path, "no certificate in it")) } else { Ok(all) }
}
