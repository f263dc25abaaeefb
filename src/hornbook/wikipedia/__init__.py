"""Wikipedia: downloading dumps, reading their pages, and converting wikitext to prose.

download   dumps.wikimedia.org  ->  enwiki-20260101-pages-articles-multistream.xml.bz2, verified
blocks     .xml, .xml.bz2, ...  ->  bytes of XML, from several bzip2 streams in parallel
dump       XML                  ->  Page(title, text, offset)
clean      wikitext             ->  prose, using tags and templates
reader     all of the above, or WikiExtractor's files  ->  documents, page by page, cleaned in several processes
"""
