"""Wikipedia: dumps fetched, read page by page, and their wikitext turned into prose.

download   dumps.wikimedia.org  ->  enwiki-20260101-pages-articles-multistream.xml.bz2, checked
blocks     .xml, .xml.bz2, ...  ->  bytes of XML, several bzip2 streams at once
dump       XML                  ->  Page(title, text, offset)
clean      wikitext             ->  prose, by way of tags, templates, links, lines
reader     all of that          ->  (text, offset), page after page, cleaned in several processes
extracted  WikiExtractor's output, read as it is
"""
